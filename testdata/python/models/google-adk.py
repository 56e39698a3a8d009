"""Prints what Google's Agent Development Kit gives its model: see internal/peers/python_test.go."""

import asyncio
import json
import os
import sys
from unittest import mock

# It looks for nothing in the cloud.
os.environ.update({"GOOGLE_API_USE_CLIENT_CERTIFICATE": "false", "NO_GCE_CHECK": "true"})

from google.adk.tools.mcp_tool.mcp_session_manager import StreamableHTTPConnectionParams
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset

job = json.load(sys.stdin)


async def call(tools, one):
    context = mock.MagicMock(name="tool_context", tool_confirmation=None)
    try:
        return await tools[one["name"]].run_async(args=one["args"], tool_context=context)
    except Exception as e:
        return "[raised] " + str(e)


async def main():
    headers = {"Authorization": "Bearer " + job["token"]} if job.get("token") else {}
    toolset = McpToolset(connection_params=StreamableHTTPConnectionParams(url=job["url"], headers=headers, timeout=60))
    try:
        found = await toolset.get_tools()
        if job.get("calls") is None:
            return [t._get_declaration().model_dump(mode="json", exclude_none=True) for t in found]
        tools = {t.name: t for t in found}
        return [await call(tools, one) for one in job["calls"]]
    finally:
        await toolset.close()


json.dump(asyncio.run(main()), sys.stdout)
