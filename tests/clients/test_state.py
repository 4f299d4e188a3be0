"""Where state lies that outlives the server."""

import http.client
import os


def status(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_the_state_of_agents_lies_in_the_state_directory(start, tmp_path):
    server = start(env={"ABX_SERVER_ENABLED_GROUPS": "agents", "ABX_STATE_DIR": str(tmp_path / "state")})
    assert status(server, "/v1/agents") == 200
    assert os.path.exists(tmp_path / "state" / "agents" / "agents.db")


def test_agents_may_have_a_place_of_their_own(start, tmp_path):
    server = start(env={"ABX_SERVER_ENABLED_GROUPS": "agents", "ABX_STATE_DIR": str(tmp_path / "state"),
                        "ABX_AGENTS_STATE_DIR": str(tmp_path / "own")})
    assert status(server, "/v1/agents") == 200
    assert os.path.exists(tmp_path / "own" / "agents.db")
    assert not os.path.exists(tmp_path / "state")
