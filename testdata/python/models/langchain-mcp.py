"""Prints what LangChain gives its model: see internal/peers/python_test.go."""

import asyncio
import json
import sys

from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools

job = json.load(sys.stdin)


async def call(tools, n, one):
    try:
        message = await tools[one["name"]].ainvoke({"type": "tool_call", "id": f"call_{n}", "name": one["name"], "args": one["args"]})
        for part in message.content:
            if isinstance(part, dict):
                part.pop("id", None)  # it is random
        return message.content
    except Exception as e:
        return "[raised] " + str(e)


async def main():
    connection = {"transport": "streamable_http", "url": job["url"]}
    if job.get("token"):
        connection["headers"] = {"Authorization": "Bearer " + job["token"]}
    client = MultiServerMCPClient({"gate": connection})
    async with client.session("gate") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}
        if job.get("calls") is None:
            return [convert_to_openai_tool(tool) for tool in tools.values()]
        return [await call(tools, n, one) for n, one in enumerate(job["calls"])]


json.dump(asyncio.run(main()), sys.stdout)
