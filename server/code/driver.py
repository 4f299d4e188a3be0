# Runs one text after the other in one namespace. Socket 4: a JSON line in ({"code", "token"}), a JSON line out
# ({"exit_code", "result", "results"}); before it goes out, the token is written to stdout and stderr, so that
# the server knows that it has all of the output.
def _serve():
    import ast, asyncio, base64, builtins, io, inspect, json, linecache, os, socket, sys, traceback, types

    link = socket.socket(fileno=4)
    link.set_inheritable(False)
    lines = link.makefile("rb")
    os.environ.setdefault("MPLBACKEND", "Agg")
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    sys.excepthook = sys.__excepthook__
    sys.argv = ["-c"]
    sys.path.insert(0, "") if "" not in sys.path else None
    shown = []
    event_loop = None
    limit = 8 << 20

    kinds = (
        ("html", "_repr_html_"),
        ("markdown", "_repr_markdown_"),
        ("svg", "_repr_svg_"),
        ("latex", "_repr_latex_"),
        ("png", "_repr_png_"),
        ("jpeg", "_repr_jpeg_"),
        ("json", "_repr_json_"),
    )

    def describe(value):
        made = {"text": repr(value)}
        for kind, name in kinds:
            method = getattr(value, name, None) if hasattr(type(value), name) else None
            if method is None:
                continue
            try:
                data = method()
            except Exception:
                continue
            if isinstance(data, tuple):
                data = data[0]
            if data is None:
                continue
            if isinstance(data, bytes):
                data = base64.b64encode(data).decode()
            made[kind] = data
        if "json" not in made and isinstance(value, (bool, int, float, str, list, tuple, dict)):
            try:
                text = json.dumps(value, allow_nan=False)
                if len(text) <= 1 << 20:
                    made["json"] = json.loads(text)
            except (TypeError, ValueError, RecursionError):
                pass
        return made

    def display(*values):
        shown.extend(describe(value) for value in values)

    builtins.display = display

    def figures():
        plot = sys.modules.get("matplotlib.pyplot")
        if plot is None:
            return
        for number in plot.get_fignums():
            figure = plot.figure(number)
            data = io.BytesIO()
            figure.savefig(data, format="png", bbox_inches="tight")
            shown.append({"text": repr(figure), "png": base64.b64encode(data.getvalue()).decode()})
        plot.close("all")

    def evaluate(code):
        nonlocal event_loop
        value = eval(code, main.__dict__)
        if code.co_flags & inspect.CO_COROUTINE:
            if event_loop is None:
                event_loop = asyncio.new_event_loop()
                asyncio.set_event_loop(event_loop)
            value = event_loop.run_until_complete(value)
        return value

    def run(text, name):
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        tree = ast.parse(text, name)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if tree.body:
            evaluate(compile(tree, name, "exec", flags))
        if last is None:
            return None
        return evaluate(compile(ast.Expression(last.value), name, "eval", flags))

    def write(fd, data):
        try:
            while data:
                data = data[os.write(fd, data):]
        except OSError:
            pass

    count = 0
    for line in lines:
        order = json.loads(line)
        count += 1
        shown.clear()
        answer = {"exit_code": 0, "result": None}
        try:
            value = run(order["code"], "<cell %d>" % count)
            if value is not None:
                main._ = value
                made = describe(value)
                answer["result"] = made["text"]
                shown.append(made)
            figures()
        except SystemExit as leave:
            code = leave.code
            if code is None:
                code = 0
            elif not isinstance(code, int):
                print(code, file=sys.stderr)
                code = 1
            answer["exit_code"] = code & 255
        except BaseException as error:
            answer["exit_code"] = 1
            trace = error.__traceback__
            while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
                trace = trace.tb_next
            traceback.print_exception(type(error), error, trace)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        answer["results"] = shown
        try:
            text = json.dumps(answer, allow_nan=False)
        except (TypeError, ValueError):
            answer["results"] = [{"text": made["text"]} for made in shown]
            text = json.dumps(answer)
        if len(text) > limit:
            answer["result"] = (answer["result"] or "")[: 1 << 20]
            answer["results"] = []
            answer["results_dropped"] = True
            text = json.dumps(answer)
        mark = order["token"].encode()
        write(1, mark)
        write(2, mark)
        link.sendall(text.encode() + b"\n")


_serve()
