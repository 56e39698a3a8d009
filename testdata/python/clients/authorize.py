"""A Python client that knows an address alone: authorize.py URL REDIRECT CLIENT

Each line of standard input is the name of a tool to call. It prints one JSON object a line: {"open": address} for a page
that a person has to open, after which it reads the query with which the page comes back; {"error": ..., "token": ...,
"refresh": ..., "expires": ...} for each call, with the time from which on it refreshes the token. Without a CLIENT it
registers itself.
"""

import asyncio
import json
import sys
from urllib.parse import parse_qs

from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

url, redirect, client = sys.argv[1:]


def say(value):
    print(json.dumps(value), flush=True)


class Storage:
    tokens = None
    info = OAuthClientInformationFull(client_id=client, redirect_uris=[redirect], token_endpoint_auth_method="none") if client else None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.info

    async def set_client_info(self, info):
        self.info = info


async def opened(address):
    say({"open": address})


async def line():
    return (await asyncio.to_thread(sys.stdin.readline)).strip()


async def came_back():
    query = parse_qs(await line())
    code, state = query["code"][0], query["state"][0]
    try:  # major version 2
        from mcp.client.auth import AuthorizationCodeResult

        return AuthorizationCodeResult(code=code, state=state, iss=query.get("iss", [None])[0])
    except ImportError:
        return code, state


async def main():
    storage = Storage()
    provider = OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(redirect_uris=[redirect], token_endpoint_auth_method="none"),
        storage=storage, redirect_handler=opened, callback_handler=came_back,
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
        while tool := await line():
            result = await session.call_tool(tool, {})
            error = str(result.content) if getattr(result, "isError", getattr(result, "is_error", True)) else ""
            tokens = {"token": storage.tokens.access_token, "refresh": storage.tokens.refresh_token}
            say({"error": error, "expires": provider.context.token_expiry_time, **tokens})


asyncio.run(main())
