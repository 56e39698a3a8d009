"""Prints what the OpenAI Agents SDK gives its model: see internal/peers/python_test.go."""

import asyncio
import json
import sys

from agents import Agent
from agents.mcp import MCPServerStreamableHttp, MCPUtil
from agents.run_context import RunContextWrapper
from agents.tool_context import ToolContext

job = json.load(sys.stdin)


async def call(tools, n, one):
    context = ToolContext(context=None, tool_name=one["name"], tool_call_id=f"call_{n}", tool_arguments=json.dumps(one["args"]))
    try:
        return await tools[one["name"]].on_invoke_tool(context, json.dumps(one["args"]))
    except Exception as e:
        return "[raised] " + str(e)


async def main():
    headers = {"Authorization": "Bearer " + job["token"]} if job.get("token") else {}
    params = {"url": job["url"], "headers": headers, "timeout": 60}
    async with MCPServerStreamableHttp(params, name="gate", client_session_timeout_seconds=60) as server:
        agent = Agent(name="agent", mcp_servers=[server])
        found = await MCPUtil.get_all_function_tools([server], False, RunContextWrapper(None), agent)
        tools = {tool.name: tool for tool in found}
        if job.get("calls") is None:
            return [{"name": t.name, "description": t.description, "parameters": t.params_json_schema} for t in found]
        return [await call(tools, n, one) for n, one in enumerate(job["calls"])]


json.dump(asyncio.run(main()), sys.stdout)
