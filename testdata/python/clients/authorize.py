"""A Python client that knows an address alone: authorize.py URL REDIRECT CLIENT TOOL...

It calls the tools, and prints one JSON object a line: {"open": address} for a page that a person has to open, after
which it reads the query with which the page comes back; {"error": ..., "result": ...} for each call. CLIENT is the
client that the authorization server knows it as.
"""

import asyncio
import json
import sys
from urllib.parse import parse_qs

from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

url, redirect, client, tools = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]


def say(value):
    print(json.dumps(value), flush=True)


class Storage:
    tokens = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return OAuthClientInformationFull(client_id=client, redirect_uris=[redirect], token_endpoint_auth_method="none")

    async def set_client_info(self, info):
        raise AssertionError("the client is known")


async def opened(address):
    say({"open": address})


async def came_back():
    query = parse_qs((await asyncio.to_thread(sys.stdin.readline)).strip())
    code, state = query["code"][0], query["state"][0]
    try:  # major version 2
        from mcp.client.auth import AuthorizationCodeResult

        return AuthorizationCodeResult(code=code, state=state, iss=query.get("iss", [None])[0])
    except ImportError:
        return code, state


async def main():
    provider = OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(redirect_uris=[redirect], token_endpoint_auth_method="none"),
        storage=Storage(), redirect_handler=opened, callback_handler=came_back,
    )
    try:
        from mcp.client.streamable_http import streamablehttp_client

        connection = streamablehttp_client(url, auth=provider)
    except ImportError:  # major version 2
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        connection = streamable_http_client(url, http_client=httpx2.AsyncClient(auth=provider, timeout=30))
    async with connection as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        for tool in tools:
            result = await session.call_tool(tool, {})
            say({"error": str(result.content) if getattr(result, "isError", getattr(result, "is_error", True)) else "", "result": True})


asyncio.run(main())
