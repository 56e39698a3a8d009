// One session of a TypeScript client, with the time limits that it has by
// itself. stdin is {way, steps, major, era}, stdout an array with what the client
// saw of each step. Package sdk is the first major version and knows the legacy
// era; package client is the second and knows both.
import { readFileSync } from "node:fs";

const { way, steps, major, era } = JSON.parse(readFileSync(0, "utf8"));
const modern = era === "2026-07-28";
const { Client, Stdio, HTTP } = await (major === 1 ? first() : second());

async function first() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  return { Client, Stdio: StdioClientTransport, HTTP: StreamableHTTPClientTransport };
}

async function second() {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  return { Client, Stdio: StdioClientTransport, HTTP: StreamableHTTPClientTransport };
}

const transport = way.url
  ? new HTTP(new URL(way.url), { requestInit: { headers: { Authorization: `Bearer ${way.token}` } } })
  : new Stdio({ command: way.command, args: way.args, cwd: way.dir, stderr: "ignore" });
const client = new Client(
  { name: "typescript", version: String(major) },
  major === 1 ? undefined : { versionNegotiation: { mode: modern ? { pin: era } : "legacy" } },
);
await client.connect(transport);

const seen = [];
for (const step of steps) {
  const saw = { progress: 0 };
  try {
    if (step.op === "list") {
      // A list may come before every server has answered: it is asked again.
      const end = Date.now() + 60_000;
      do {
        if (saw.tools) await new Promise((resolve) => setTimeout(resolve, 50));
        saw.tools = [];
        let cursor;
        do {
          const page = await client.listTools({ cursor });
          saw.tools.push(...page.tools.map((tool) => tool.name));
          cursor = page.nextCursor;
        } while (cursor);
      } while (saw.tools.length < step.want && Date.now() < end);
    } else {
      const abort = new AbortController();
      const options = { signal: abort.signal };
      if (step.progress || step.cancel) {
        options.onprogress = () => {
          saw.progress++;
          if (step.cancel) abort.abort("no longer wanted");
        };
      }
      const params = { name: step.tool, arguments: step.args };
      saw.result = await (major === 1 ? client.callTool(params, undefined, options) : client.callTool(params, options));
    }
  } catch (e) {
    saw.failed = String(e);
    saw.code = typeof e?.code === "number" ? e.code : 0;
    saw.data = e?.data;
  }
  seen.push(saw);
}
if (way.url && !modern) await transport.terminateSession();
await client.close();
console.log(JSON.stringify(seen));
