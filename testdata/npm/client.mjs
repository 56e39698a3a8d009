// Performs actions in one session of a TypeScript client. stdin is {target,
// revision, major, actions, rootURI, model}, stdout an array with one observation
// per action. Package sdk is major version 1 and has sessions only; package client
// is major version 2 and has both revisions. Time limits are the client's own.
import { readFileSync } from "node:fs";
import { z } from "zod";

const { target, revision, major, actions, rootURI, model } = JSON.parse(readFileSync(0, "utf8"));
const stateless = revision === "2026-07-28";
const settled = 15_000; // milliseconds to wait for notifications
const listed = 60_000; // milliseconds to wait for a complete list

const capabilities = target.bare ? {} : { roots: { listChanged: true }, sampling: {}, elicitation: { form: {}, url: {} } };
const library = major === 1 ? await first() : await second();
const { client, transport } = library;

async function first() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  const made = new Client({ name: "typescript", version: "1" }, { capabilities });
  const schemas = {
    "sampling/createMessage": types.CreateMessageRequestSchema,
    "elicitation/create": types.ElicitRequestSchema,
    "roots/list": types.ListRootsRequestSchema,
  };
  return {
    client: made,
    transport: connectWith(StdioClientTransport, StreamableHTTPClientTransport),
    answer: (method, handler) => made.setRequestHandler(schemas[method], handler),
    onNotification: (handler) => (made.fallbackNotificationHandler = handler),
  };
}

async function second() {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const versionNegotiation = { mode: stateless ? { pin: revision } : "legacy" };
  const made = new Client({ name: "typescript", version: "2" }, { capabilities, versionNegotiation });
  return {
    client: made,
    transport: connectWith(StdioClientTransport, StreamableHTTPClientTransport),
    answer: (method, handler) => made.setRequestHandler(method, handler),
    onNotification: (handler) => (made.fallbackNotificationHandler = handler),
  };
}

function connectWith(Stdio, HTTP) {
  if (!target.url) return new Stdio({ command: target.command, args: target.args, cwd: target.dir, stderr: "ignore" });
  const headers = target.token ? { Authorization: `Bearer ${target.token}` } : {};
  return new HTTP(new URL(target.url), { requestInit: { headers } });
}

// Messages of the server.
const notifications = [];
const requests = [];
library.onNotification(async (n) => void notifications.push({ method: n.method, params: n.params ?? {} }));
// Progress is recorded as it arrives. The client handles a notification later than an
// answer that arrives in the same read, and then drops it.
transport.onmessage = ({ method, params }) => {
  if (method === "notifications/progress") notifications.push({ method, params });
};
if (!target.bare) {
  library.answer("roots/list", async () => ({ roots: [{ uri: rootURI, name: "root" }] }));
  library.answer("sampling/createMessage", async ({ params }) => {
    requests.push({ method: "sampling/createMessage", params });
    const content = params.messages[0].content;
    const text = `sampled: ${(Array.isArray(content) ? content[0] : content).text}`;
    return { model, role: "assistant", content: { type: "text", text } };
  });
  library.answer("elicitation/create", async ({ params }) => {
    requests.push({ method: "elicitation/create", params });
    if (params.mode === "url") return { action: "accept" };
    return { action: "accept", content: fillForm(params.requestedSchema) };
  });
}

// fillForm returns values for the required properties of a form.
function fillForm({ properties = {}, required = [] }) {
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

// Each op returns {names} or {result}.
const ops = {
  tools: async (action) => {
    const end = Date.now() + listed;
    let names = await all("listTools", "tools", "name");
    for (; names.length < (action.want ?? 0) && Date.now() < end; await sleep(50)) names = await all("listTools", "tools", "name");
    return { names };
  },
  resources: async () => ({ names: await all("listResources", "resources", "uri") }),
  templates: async () => ({ names: await all("listResourceTemplates", "resourceTemplates", "uriTemplate") }),
  prompts: async () => ({ names: await all("listPrompts", "prompts", "name") }),
  call: async (action, options) => {
    const params = { name: action.name, arguments: action.args ?? {} };
    if (stateless && level) params._meta = { "io.modelcontextprotocol/logLevel": level };
    return { result: await (major === 1 ? client.callTool(params, undefined, options) : client.callTool(params, options)) };
  },
  task: async (action) => {
    const params = { name: action.name, arguments: action.args, task: { ttl: 60_000 } };
    const { task } = await client.request({ method: "tools/call", params }, anything);
    return { result: await client.request({ method: "tasks/result", params: { taskId: task.taskId } }, anything) };
  },
  read: async (action) => ({ result: await client.readResource({ uri: action.uri }) }),
  prompt: async (action) => ({ result: await client.getPrompt({ name: action.name, arguments: action.args }) }),
  complete: async (action) => {
    const ref = { type: "ref/prompt", name: action.name };
    return { result: await client.complete({ ref, argument: { name: action.argument, value: action.value } }) };
  },
  level: async (action) => {
    level = action.value;
    if (!stateless) await client.setLoggingLevel(level);
    return {};
  },
  subscribe: async (action) => {
    if (!stateless) await client.subscribeResource({ uri: action.uri });
    else
      listening = await client.listen({
        toolsListChanged: true,
        promptsListChanged: true,
        resourcesListChanged: true,
        resourceSubscriptions: [action.uri],
      });
    return {};
  },
  unsubscribe: async (action) => {
    if (!stateless) await client.unsubscribeResource({ uri: action.uri });
    return {};
  },
};

// all returns the names on every page of a list.
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
const observations = [];
for (const action of actions) {
  const from = { notifications: notifications.length, requests: requests.length };
  const abort = new AbortController();
  const options = { signal: abort.signal };
  if (action.progress || action.cancel) {
    // The handler makes the client request progress.
    options.onprogress = () => {
      if (action.cancel) abort.abort("cancelled by the test");
    };
  }
  let outcome;
  try {
    outcome = await ops[action.op](action, options);
  } catch (e) {
    outcome = { failed: String(e?.stack ?? e), code: typeof e?.code === "number" ? e.code : 0, data: e?.data };
  }
  const missing = ([method, n]) => notifications.slice(from.notifications).filter((one) => one.method === method).length < n;
  for (const end = Date.now() + settled; Object.entries(action.wait ?? {}).some(missing) && Date.now() < end; ) await sleep(10);
  observations.push({ ...outcome, notifications: notifications.slice(from.notifications), requests: requests.slice(from.requests) });
}
await listening?.close();
if (target.url && !stateless) await transport.terminateSession();
await client.close();
console.log(JSON.stringify(observations));
