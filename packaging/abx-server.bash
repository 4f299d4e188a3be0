# bash completion for abx-server and agent-sandbox-server

_abx_server()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} words=
    case $prev in
    --commands | --policy | --path)
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    --base-dir)
        mapfile -t COMPREPLY < <(compgen -d -- "$cur")
        return
        ;;
    --preset) words="default transfer-only read-only hardened locked" ;;
    --op) words="read write delete exec" ;;
    --host) words="127.0.0.1 0.0.0.0 ::1 ::" ;;
    --port | --pty-port | --timeout | --name | --explain | --scopes) return ;;
    *)
        if ((COMP_CWORD == 1)); then
            words="serve healthcheck check-config init version --version --cflags --help"
        else
            case $command in
            serve) words="--host --port --pty-port --commands --reload --policy --preset --base-dir --help" ;;
            healthcheck) words="--host --port --timeout --help" ;;
            check-config) words="--policy --preset --commands --json --strict --explain --path --scopes --op --help" ;;
            init)
                words="--name --help"
                if [[ $cur != -* ]]; then
                    mapfile -t COMPREPLY < <(compgen -d -- "$cur")
                    return
                fi
                ;;
            version) words="--help" ;;
            esac
        fi
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -o filenames -F _abx_server abx-server agent-sandbox-server
