// Plays acts in one session of a TypeScript client. stdin is {way, era, major,
// acts, rootURI, model}, stdout an array with what the client saw of each act.
// Package sdk is the first major version and knows the legacy era; package
// client is the second and knows both.
import { readFileSync } from "node:fs";
import { z } from "zod";

const { way, era, major, acts, rootURI, model } = JSON.parse(readFileSync(0, "utf8"));
const modern = era === "2026-07-28";
const settled = 15_000;

const capabilities = {
  roots: { listChanged: true },
  sampling: {},
  elicitation: { form: {}, url: {} },
};
const library = major === 1 ? await first() : await second();
const { client, transport } = library;

async function first() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  const made = new Client({ name: "typescript", version: "1" }, { capabilities });
  const requests = {
    "sampling/createMessage": types.CreateMessageRequestSchema,
    "elicitation/create": types.ElicitRequestSchema,
    "roots/list": types.ListRootsRequestSchema,
  };
  return {
    client: made,
    transport: connectWith(StdioClientTransport, StreamableHTTPClientTransport),
    answer: (method, handler) => made.setRequestHandler(requests[method], handler),
    hear: (handler) => (made.fallbackNotificationHandler = handler),
  };
}

async function second() {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const versionNegotiation = { mode: modern ? { pin: era } : "legacy" };
  const made = new Client({ name: "typescript", version: "2" }, { capabilities, versionNegotiation });
  return {
    client: made,
    transport: connectWith(StdioClientTransport, StreamableHTTPClientTransport),
    answer: (method, handler) => made.setRequestHandler(method, handler),
    hear: (handler) => (made.fallbackNotificationHandler = handler),
  };
}

function connectWith(Stdio, HTTP) {
  if (!way.url) return new Stdio({ command: way.command, args: way.args, cwd: way.dir, stderr: "ignore" });
  const headers = way.token ? { Authorization: `Bearer ${way.token}` } : {};
  return new HTTP(new URL(way.url), { requestInit: { headers } });
}

// Everything that the server asks and tells.
const heard = [];
const asked = [];
library.hear(async (n) => void heard.push({ method: n.method, params: n.params ?? {} }));
library.answer("roots/list", async () => ({ roots: [{ uri: rootURI, name: "root" }] }));
library.answer("sampling/createMessage", async ({ params }) => {
  asked.push({ method: "sampling/createMessage", params });
  const said = params.messages[0].content;
  const text = `sampled: ${(Array.isArray(said) ? said[0] : said).text}`;
  return { model, role: "assistant", content: { type: "text", text } };
});
library.answer("elicitation/create", async ({ params }) => {
  asked.push({ method: "elicitation/create", params });
  if (params.mode === "url") return { action: "accept" };
  return { action: "accept", content: filledIn(params.requestedSchema) };
});

// filledIn fills in what a form requires.
function filledIn({ properties = {}, required = [] }) {
  const content = {};
  for (const name of required) {
    const { type, oneOf } = properties[name] ?? {};
    content[name] = type === "boolean" ? true : type === "integer" || type === "number" ? 7 : (oneOf?.[0].const ?? "Ada");
  }
  return content;
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const anything = z.looseObject({});
let level;
let listening;

// Each op gives {names} or {result}.
const ops = {
  tools: async (act) => {
    const end = Date.now() + settled;
    let names = await all("listTools", "tools", "name");
    for (; names.length < (act.want ?? 0) && Date.now() < end; await sleep(50)) names = await all("listTools", "tools", "name");
    return { names };
  },
  resources: async () => ({ names: await all("listResources", "resources", "uri") }),
  templates: async () => ({ names: await all("listResourceTemplates", "resourceTemplates", "uriTemplate") }),
  prompts: async () => ({ names: await all("listPrompts", "prompts", "name") }),
  call: async (act, options) => {
    const params = { name: act.name, arguments: act.args ?? {} };
    if (modern && level) params._meta = { "io.modelcontextprotocol/logLevel": level };
    return { result: await (major === 1 ? client.callTool(params, undefined, options) : client.callTool(params, options)) };
  },
  task: async (act) => {
    const params = { name: act.name, arguments: act.args, task: { ttl: 60_000 } };
    const { task } = await client.request({ method: "tools/call", params }, anything);
    return { result: await client.request({ method: "tasks/result", params: { taskId: task.taskId } }, anything) };
  },
  read: async (act) => ({ result: await client.readResource({ uri: act.uri }) }),
  prompt: async (act) => ({ result: await client.getPrompt({ name: act.name, arguments: act.args }) }),
  complete: async (act) => {
    const ref = { type: "ref/prompt", name: act.name };
    return { result: await client.complete({ ref, argument: { name: act.argument, value: act.value } }) };
  },
  level: async (act) => {
    level = act.value;
    if (!modern) await client.setLoggingLevel(level);
    return {};
  },
  listen: async (act) => {
    if (!modern) await client.subscribeResource({ uri: act.uri });
    else
      listening = await client.listen({
        toolsListChanged: true,
        promptsListChanged: true,
        resourcesListChanged: true,
        resourceSubscriptions: [act.uri],
      });
    return {};
  },
  hush: async (act) => {
    if (!modern) await client.unsubscribeResource({ uri: act.uri });
    return {};
  },
};

// all goes through every page of a list.
async function all(method, member, name) {
  const names = [];
  let cursor;
  do {
    const page = await client[method](cursor ? { cursor } : undefined);
    names.push(...page[member].map((one) => one[name]));
    cursor = page.nextCursor;
  } while (cursor);
  return names;
}

await client.connect(transport);
const seen = [];
for (const act of acts) {
  const from = { heard: heard.length, asked: asked.length };
  const abort = new AbortController();
  const options = { signal: abort.signal, timeout: 60_000 };
  if (act.progress || act.cancel) {
    // The client keeps progress from other handlers.
    options.onprogress = (params) => {
      heard.push({ method: "notifications/progress", params });
      if (act.cancel) abort.abort("no longer wanted");
    };
  }
  let saw;
  try {
    saw = await ops[act.op](act, options);
  } catch (e) {
    saw = { failed: String(e?.stack ?? e), code: typeof e?.code === "number" ? e.code : 0 };
  }
  const missing = ([method, n]) => heard.slice(from.heard).filter((one) => one.method === method).length < n;
  for (const end = Date.now() + settled; Object.entries(act.wait ?? {}).some(missing) && Date.now() < end; ) await sleep(10);
  seen.push({ ...saw, heard: heard.slice(from.heard), asked: asked.slice(from.asked) });
}
await listening?.close();
if (way.url && !modern) await transport.terminateSession();
await client.close();
console.log(JSON.stringify(seen));
