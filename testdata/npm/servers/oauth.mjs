// A server made with the TypeScript SDK 1 and its own authorization server: node oauth.mjs PORT
// SECONDS. Whoever signs in is who they say. The first access token of a sign-in is valid for
// SECONDS, a refreshed one for 600. Each answer names the account of the token, and for how long the
// token is good; a session takes tokens of one account alone.
import { randomUUID } from "node:crypto";
import express from "express";
import { z } from "zod";
import { InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js";
import { completable } from "@modelcontextprotocol/sdk/server/completable.js";
import { InvalidTokenError } from "@modelcontextprotocol/sdk/server/auth/errors.js";
import { requireBearerAuth } from "@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js";
import { getOAuthProtectedResourceMetadataUrl, mcpAuthRouter } from "@modelcontextprotocol/sdk/server/auth/router.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { SubscribeRequestSchema, UnsubscribeRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [port, seconds] = process.argv.slice(2).map(Number);
const base = new URL(`http://127.0.0.1:${port}`);
const resource = new URL("/mcp", base);

const [clients, begun, codes, refreshes, accesses] = Array.from({ length: 5 }, () => new Map());
const take = (map, key) => {
  const value = map.get(key);
  map.delete(key);
  return value;
};

function issue(of, validity) {
  const [access_token, refresh_token] = [randomUUID(), randomUUID()];
  accesses.set(access_token, { ...of, validity, expiresAt: Date.now() / 1000 + validity });
  refreshes.set(refresh_token, of);
  return { access_token, refresh_token, token_type: "bearer", expires_in: validity, scope: of.scopes.join(" ") };
}

const provider = {
  clientsStore: { getClient: (id) => clients.get(id), registerClient: (client) => (clients.set(client.client_id, client), client) },
  async authorize(client, params, res) {
    const at = randomUUID();
    begun.set(at, { clientId: client.client_id, ...params });
    res.redirect(`/login?at=${at}`);
  },
  challengeForAuthorizationCode: async (_, code) => codes.get(code).codeChallenge,
  exchangeAuthorizationCode: async (_, code) => issue(take(codes, code), seconds),
  exchangeRefreshToken: async (_, token) => issue(take(refreshes, token), 600),
  async verifyAccessToken(token) {
    const found = accesses.get(token);
    if (!found || found.expiresAt < Date.now() / 1000 || found.resource?.href !== resource.href) throw new InvalidTokenError("not valid here");
    const { account, validity, clientId, scopes, expiresAt } = found;
    return { token, clientId, scopes, expiresAt, extra: { account, validity } };
  },
  revokeToken: async (_, { token }) => void (accesses.delete(token), refreshes.delete(token)),
};

const tasks = new InMemoryTaskStore();
const sessions = new Map(); // :: session => {transport, server, account}

function serverOf(account) {
  const data = ({ authInfo: { extra } }) => `data of ${extra.account}, token for ${extra.validity} s`;
  const about = { description: `What there is of ${account}` };
  const server = new McpServer(
    { name: "accounts", version: "1" },
    { capabilities: { resources: { subscribe: true }, tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } }, taskStore: tasks },
  );
  server.registerTool("mine", { description: "What the caller has" }, async (extra) => ({ content: [{ type: "text", text: data(extra) }] }));
  server.registerTool("touch", { description: "Changes what the caller has", inputSchema: { uri: z.string() } }, async ({ uri }) => {
    for (const one of sessions.values()) if (one.account === account) await one.server.server.sendResourceUpdated({ uri });
    return { content: [] };
  });
  server.experimental.tasks.registerToolTask("work", { description: "Works on it", inputSchema: {}, execution: { taskSupport: "required" } }, {
    async createTask(_, extra) {
      const task = await extra.taskStore.createTask({ ttl: 60_000 });
      await extra.taskStore.storeTaskResult(task.taskId, "completed", { content: [{ type: "text", text: data(extra) }] });
      return { task };
    },
    getTask: (_, { taskId, taskStore }) => taskStore.getTask(taskId),
    getTaskResult: (_, { taskId, taskStore }) => taskStore.getTaskResult(taskId),
  });
  server.registerResource("mine", "data://mine", about, async (uri, extra) => ({ contents: [{ uri: uri.href, text: data(extra) }] }));
  const topic = completable(z.string(), () => [`data of ${account}`]);
  server.registerPrompt("mine", { ...about, argsSchema: { topic } }, async (_, extra) => ({ messages: [{ role: "user", content: { type: "text", text: data(extra) } }] }));
  for (const schema of [SubscribeRequestSchema, UnsubscribeRequestSchema]) server.server.setRequestHandler(schema, async () => ({}));
  return server;
}

const app = express();
app.use(mcpAuthRouter({ provider, issuerUrl: base, resourceServerUrl: resource, scopesSupported: ["data"] }));
app.get("/login", (req, res) => res.send(`<form method="post" action="/login?at=${encodeURIComponent(req.query.at)}"><input name="login"></form>`));
app.post("/login", express.urlencoded(), (req, res) => {
  const { state, redirectUri, ...rest } = take(begun, req.query.at);
  const code = randomUUID();
  codes.set(code, { ...rest, account: req.body.login });
  res.redirect(`${redirectUri}?${new URLSearchParams({ code, state })}`);
});
app.all("/mcp", requireBearerAuth({ verifier: provider, requiredScopes: ["data"], resourceMetadataUrl: getOAuthProtectedResourceMetadataUrl(resource) }), express.json(), async (req, res) => {
  const { account } = req.auth.extra;
  let session = sessions.get(req.headers["mcp-session-id"]);
  if (session && session.account !== account) return res.status(403).end();
  if (!session && req.headers["mcp-session-id"]) return res.status(404).end();
  if (!session) {
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, onsessioninitialized: (id) => void sessions.set(id, session) });
    session = { transport, server: serverOf(account), account };
    transport.onclose = () => sessions.delete(transport.sessionId);
    await session.server.connect(transport);
  }
  await session.transport.handleRequest(req, res, req.body);
});
app.listen(port, "127.0.0.1", () => console.log("listening"));
