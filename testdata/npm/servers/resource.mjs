// A server made with the TypeScript SDK 2, for revisions with a session and without, that trusts an
// authorization server: node resource.mjs PORT ISSUER. Each answer names the account of the token, and
// for how long the token is good.
import { serve } from "@hono/node-server";
import {
  McpServer, OAuthError, OAuthErrorCode, completable, createMcpHandler, fromJsonSchema, getOAuthProtectedResourceMetadataUrl, oauthMetadataResponse, requireBearerAuth,
} from "@modelcontextprotocol/server";
import { createRemoteJWKSet, jwtVerify } from "jose";
import { z } from "zod";

const [port, issuer] = process.argv.slice(2);
const resource = new URL(`http://127.0.0.1:${port}/mcp`);
const oauthMetadata = await (await fetch(`${issuer}/.well-known/openid-configuration`)).json();
const keys = createRemoteJWKSet(new URL(oauthMetadata.jwks_uri));

const verifier = {
  async verifyAccessToken(token) {
    const { payload } = await jwtVerify(token, keys, { issuer, audience: resource.href }).catch((error) => {
      throw new OAuthError(OAuthErrorCode.InvalidToken, String(error));
    });
    const extra = { data: `data of ${payload.sub}, token for ${payload.exp - payload.iat} s` };
    return { token, clientId: payload.client_id, scopes: payload.scope.split(" "), expiresAt: payload.exp, extra };
  },
};
const gate = requireBearerAuth({ verifier, requiredScopes: ["media"], resourceMetadataUrl: getOAuthProtectedResourceMetadataUrl(resource) });

const handler = createMcpHandler(({ authInfo: { extra: { data } } }) => {
  const about = { description: data };
  const server = new McpServer({ name: "accounts", version: "2" });
  server.registerTool("mine", { description: "What the caller has", inputSchema: fromJsonSchema({ type: "object" }) }, async () => ({ content: [{ type: "text", text: data }] }));
  server.registerResource("mine", "data://mine", about, async (uri) => ({ contents: [{ uri: uri.href, text: data }] }));
  const argsSchema = z.object({ topic: completable(z.string(), () => [data]) });
  server.registerPrompt("mine", { ...about, argsSchema }, async () => ({ messages: [{ role: "user", content: { type: "text", text: data } }] }));
  return server;
});

const fetchMCP = async (request) => {
  const authInfo = await gate(request);
  return authInfo instanceof Response ? authInfo : handler.fetch(request, { authInfo });
};
serve({
  hostname: "127.0.0.1", port: Number(port),
  fetch: (request) => oauthMetadataResponse(request, { oauthMetadata, resourceServerUrl: resource, scopesSupported: ["media"] }) ?? fetchMCP(request),
}, () => console.log("listening"));
