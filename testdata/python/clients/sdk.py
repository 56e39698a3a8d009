"""Performs every act with the client of the official SDK, and prints what came of each.

stdin is {url, token, command, args, mode, acts}; a command is started and spoken to over
stdio. stdout is an object with one value for each act.
"""

import asyncio
import json
import sys

import httpx2 as httpx
import mcp
import mcp_types as types
from mcp.client.streamable_http import streamable_http_client


def plain(value):
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


async def sampled(context, params):
    text = types.TextContent(type="text", text="42 of " + params.messages[0].content.text)
    return types.CreateMessageResult(role="assistant", content=text, model="fake")


async def elicited(context, params):
    return types.ElicitResult(action="accept", content={"value": "Ann"})


async def attempt(act):
    try:
        value = await act()
        return plain(value) if hasattr(value, "model_dump") else value
    except mcp.MCPError as e:
        return {"code": e.error.code, "message": e.error.message}


async def perform(client, acts, heard):
    async def do(act):
        kind, name, args = act["do"], act.get("name", ""), act.get("args")
        if kind == "call":
            return await client.call_tool(name, args, progress_callback=heard)
        if kind == "cancel":
            with __import__("anyio").move_on_after(1):
                return await client.call_tool(name, args)
            return "cancelled"
        if kind == "read":
            return await client.read_resource(name)
        if kind == "prompt":
            return await client.get_prompt(name, args)
        if kind == "complete":
            ref = types.PromptReference(type="ref/prompt", name=name)
            return await client.complete(ref, args)
        return await getattr(client, kind)()

    return {act["named"]: await attempt(lambda act=act: do(act)) for act in acts}


async def main():
    job = json.load(sys.stdin)
    heard = []

    async def progress(*what):
        heard.append(list(what))

    async def logged(params):
        heard.append([params.level, params.data])

    if job.get("command"):
        at = mcp.StdioServerParameters(command=job["command"], args=job["args"])
    else:
        headers = {"Authorization": "Bearer " + job["token"]} if job.get("token") else {}
        at = streamable_http_client(job["url"], http_client=httpx.AsyncClient(headers=headers, timeout=60))
    options = {"sampling_callback": sampled, "elicitation_callback": elicited, "logging_callback": logged, "log_level": "info"}
    async with mcp.Client(at, mode=job["mode"], **options) as client:
        out = await perform(client, job["acts"], progress)
        out["revision"] = client.protocol_version
    out["heard"] = heard
    json.dump(out, sys.stdout)


asyncio.run(main())
