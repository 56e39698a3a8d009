"""Prints what Strands Agents gives its model: see internal/peers/python_test.go."""

import json
import sys

from mcp.client.streamable_http import streamablehttp_client
from strands.tools.mcp import MCPClient

job = json.load(sys.stdin)
headers = {"Authorization": "Bearer " + job["token"]} if job.get("token") else {}


def call(client, n, one):
    try:
        result = client.call_tool_sync(f"call_{n}", one["name"], one["args"])
    except Exception as e:
        return "[raised] " + str(e)
    return [{"type": result["status"], "text": part.get("text", json.dumps(part, default=repr))} for part in result["content"]]


with MCPClient(lambda: streamablehttp_client(job["url"], headers=headers)) as client:
    if job.get("calls") is None:
        out = [tool.tool_spec for tool in client.list_tools_sync()]
    else:
        out = [call(client, n, one) for n, one in enumerate(job["calls"])]
json.dump(out, sys.stdout)
