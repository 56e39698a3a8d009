"""An MCP server with the authorization server of its own SDK, for the tests.

Its arguments are KIND PORT SECONDS. KIND is sdk, the official SDK of either major version, fastmcp, or
tasks, which is fastmcp with a tool that runs as a task.
Whoever signs in is who they say. The first access token of a sign-in is valid for SECONDS, a
refreshed one for 600. Each answer names the account of the token, and for how long the token is good.

With keycloak PORT REALM it is a server of FastMCP that trusts a realm of Keycloak. With proxy PORT ISSUER
it is one whose authorization server asks another one who somebody is, as its client proxy.
"""

import html
import secrets
import sys
import time

from mcp.server.auth.provider import AccessToken, AuthorizationCode, OAuthAuthorizationServerProvider, RefreshToken, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthToken
from mcp.types import Completion
from starlette.responses import HTMLResponse, RedirectResponse

KIND, PORT, MORE = sys.argv[1], int(sys.argv[2]), sys.argv[3]
BASE = f"http://127.0.0.1:{PORT}"


class Accounts:
    """The part of a provider that is the same for both frameworks. A token begins with how long it is good."""

    access_token = AccessToken

    def start(self):
        self.clients, self.begun, self.codes, self.refreshes, self.accesses = {}, {}, {}, {}, {}

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        at = secrets.token_hex(8)
        self.begun[at] = (client, params)
        return f"{BASE}/login?at={at}"

    async def login(self, request):
        at = request.query_params["at"]
        if request.method == "GET":
            return HTMLResponse(f'<form method="post" action="/login?at={html.escape(at)}"><input name="login"></form>')
        client, params = self.begun.pop(at)
        code = secrets.token_hex(16)
        self.codes[code] = AuthorizationCode(
            code=code, client_id=client.client_id, subject=(await request.form())["login"], scopes=params.scopes or [],
            expires_at=time.time() + 60, code_challenge=params.code_challenge, redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly, resource=params.resource,
        )
        return RedirectResponse(construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state), 303)

    def issue(self, of, seconds):
        about = {"client_id": of.client_id, "scopes": of.scopes, "subject": of.subject, "resource": of.resource}
        access, refresh = f"{seconds}-{secrets.token_hex(16)}", secrets.token_hex(16)
        self.accesses[access] = self.access_token(token=access, expires_at=int(time.time()) + seconds, claims={"sub": of.subject}, **about)
        self.refreshes[refresh] = RefreshToken(token=refresh, **about)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=seconds, scope=" ".join(of.scopes))

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self.issue(authorization_code, int(MORE))

    async def load_refresh_token(self, client, refresh_token):
        return self.refreshes.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        del self.refreshes[refresh_token.token]
        return self.issue(refresh_token, 600)

    async def revoke_token(self, token):
        self.accesses.pop(token.token, None)
        self.refreshes.pop(token.token, None)

    async def load_access_token(self, token):
        found = self.accesses.get(token)
        return found if found and found.expires_at > time.time() else None


def sdk():
    """A server of the official SDK, and what runs it."""
    from mcp.server.auth.middleware.auth_context import get_access_token

    provider = type("Provider", (Accounts, OAuthAuthorizationServerProvider), {})()
    auth = {
        "auth_server_provider": provider,
        "auth": AuthSettings(
            issuer_url=BASE, resource_server_url=f"{BASE}/mcp", required_scopes=["data"], validate_token_resource=True,
            client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=["data"], default_scopes=["data"]),
            revocation_options=RevocationOptions(enabled=True),
        ),
    }
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:  # major version 1
        from mcp.server.fastmcp import FastMCP

        server = FastMCP("accounts", port=PORT, log_level="WARNING", **auth)
        # get_access_token is that of the request which began the session.
        access = lambda: server.get_context().request_context.request.user.access_token
        return server, provider, access, lambda: server.run("streamable-http")
    server = MCPServer("accounts", log_level="WARNING", **auth)
    return server, provider, get_access_token, lambda: server.run("streamable-http", port=PORT)


def fastmcp():
    """A server of FastMCP, and what runs it."""
    from fastmcp import FastMCP
    from fastmcp.server.auth import AccessToken, OAuthProvider
    from fastmcp.server.dependencies import get_access_token

    options = ClientRegistrationOptions(enabled=True, valid_scopes=["data"], default_scopes=["data"])
    kind = type("Provider", (Accounts, OAuthProvider), {"access_token": AccessToken})
    provider = kind(base_url=BASE, required_scopes=["data"], client_registration_options=options, revocation_options=RevocationOptions(enabled=True))
    server = FastMCP("accounts", auth=provider)
    return server, provider, get_access_token, lambda: server.run("http", host="127.0.0.1", port=PORT, show_banner=False, log_level="WARNING")


def tasks():
    """A server of FastMCP with tasks of MCP 2026-07-28, and what runs it."""
    from fastmcp import Context
    from fastmcp_tasks import TasksExtension
    from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

    made = fastmcp()
    made[0].add_extension(TasksExtension())
    question = ElicitRequest(params=ElicitRequestFormParams(message="Go on?", requested_schema={"type": "object", "properties": {}}))

    @made[0].tool(task=True)
    async def work(ctx: Context) -> str | InputRequiredResult:
        """Asks before it tells what the caller has."""
        return data() if ctx.input_responses else InputRequiredResult(input_requests={"go": question})

    return made


def trusting(auth):
    """A server of FastMCP that trusts another authorization server."""
    from fastmcp import FastMCP
    from fastmcp.server.dependencies import get_access_token

    server = FastMCP("accounts", auth=auth)
    return server, None, get_access_token, lambda: server.run("http", host="127.0.0.1", port=PORT, show_banner=False, log_level="WARNING")


def keycloak():
    from fastmcp.server.auth.providers.keycloak import KeycloakAuthProvider

    return trusting(KeycloakAuthProvider(realm_url=MORE, base_url=BASE))


def proxy():
    from fastmcp.server.auth.oidc_proxy import OIDCProxy
    from key_value.aio.stores.memory import MemoryStore

    about = f"{MORE}/.well-known/openid-configuration"
    # It reads metadata documents of clients at public addresses alone.
    return trusting(OIDCProxy(
        config_url=about, client_id="proxy", base_url=BASE, audience=f"{BASE}/mcp", required_scopes=["media"],
        jwt_signing_key="for tests", client_storage=MemoryStore(), enable_cimd=False,
    ))


server, provider, access, run = {"sdk": sdk, "fastmcp": fastmcp, "tasks": tasks, "keycloak": keycloak, "proxy": proxy}[KIND]()
if provider:
    provider.start()
    server.custom_route("/login", methods=["GET", "POST"])(provider.login)


def data():
    token = access()
    if not provider:
        return f"data of {token.claims.get('email') or token.claims['sub']}, token for {token.claims['exp'] - token.claims['iat']} s"
    return f"data of {token.subject}, token for {token.token.split('-')[0]} s"


@server.tool(name="mine")
def mine() -> str:
    """What the caller has."""
    return data()


@server.resource("data://mine")
def resource() -> str:
    """What the caller has."""
    return data()


@server.prompt(name="mine")
def prompt(topic: str) -> str:
    """What the caller has."""
    return data()


@(server.completion() if KIND == "sdk" else server.completion)
async def complete(ref, argument, context):
    return Completion(values=[data()])


run()
