"""An MCP server over stdio with nothing but the standard library, for the tests.

Its one tool squares numbers in processes of its own, keeps them in an SQLite file
in the directory that is its argument, and returns their sum.
"""

import json
import multiprocessing
import os
import sqlite3
import sys

TOOL = {
    "name": "sum_of_squares",
    "description": "Sum of squares, computed by several processes",
    "inputSchema": {
        "type": "object",
        "properties": {"numbers": {"type": "array", "items": {"type": "integer"}}},
        "required": ["numbers"],
        "additionalProperties": False,
    },
}


def square(n):
    return n * n


def sum_of_squares(numbers):
    with multiprocessing.Pool(2) as pool:
        squares = pool.map(square, numbers)
    db = sqlite3.connect(os.path.join(sys.argv[1], "squares.db"))
    with db:
        db.execute("CREATE TABLE IF NOT EXISTS squares (n INTEGER)")
        db.execute("DELETE FROM squares")
        db.executemany("INSERT INTO squares VALUES (?)", [(n,) for n in squares])
    (total,) = db.execute("SELECT sum(n) FROM squares").fetchone()
    db.close()
    return {"content": [{"type": "text", "text": str(total)}]}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "python", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return sum_of_squares(params["arguments"]["numbers"])
    return {}


def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(message["method"], message.get("params", {}))
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            print(json.dumps(reply, separators=(",", ":")), flush=True)


if __name__ == "__main__":
    main()
