"""Performs every act with the client of FastMCP: see sdk.py for stdin and stdout."""

import asyncio
import json
import sys

import anyio
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

job = json.load(sys.stdin)
heard = []


def plain(value):
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.model_dump(mode="json", by_alias=True, exclude_none=True) if hasattr(value, "model_dump") else value


async def progress(done, total, message):
    heard.append([done, total, message])


async def logged(message):
    heard.append([message.level, message.data])


async def elicited(message, response_type, params, context):
    return response_type(value="Ann")


async def do(client, act):
    kind, name, args = act["do"], act.get("name", ""), act.get("args")
    if kind == "call":
        result = await client.call_tool(name, args, raise_on_error=False, progress_handler=progress)
        return {"content": plain(result.content), "structured": result.structured_content, "isError": result.is_error}
    if kind == "cancel":
        with anyio.move_on_after(1):
            return plain((await client.call_tool(name, args)).content)
        return "cancelled"
    if kind == "read":
        return plain(await client.read_resource(name))
    if kind == "prompt":
        return plain(await client.get_prompt(name, args))
    if kind == "complete":
        return plain(await client.complete({"type": "ref/prompt", "name": name}, args))
    return plain(await getattr(client, kind)())


async def attempt(client, act):
    try:
        return await do(client, act)
    except Exception as e:
        return {"raised": type(e).__name__, "message": str(e)}


async def main():
    if job.get("command"):
        at = StdioTransport(job["command"], job["args"])
    else:
        headers = {"Authorization": "Bearer " + job["token"]} if job.get("token") else {}
        at = StreamableHttpTransport(job["url"], headers=headers)
    async with Client(at, elicitation_handler=elicited, log_handler=logged) as client:
        out = {act["named"]: await attempt(client, act) for act in job["acts"]}
    out["heard"] = heard
    json.dump(out, sys.stdout)


asyncio.run(main())
