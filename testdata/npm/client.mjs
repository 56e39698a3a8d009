// One session of the TypeScript SDK's client. stdin is {way, steps}, stdout an
// array with what the client saw of each step.
import { readFileSync } from "node:fs";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { way, steps } = JSON.parse(readFileSync(0, "utf8"));
const transport = way.url
  ? new StreamableHTTPClientTransport(new URL(way.url), {
      requestInit: { headers: { Authorization: `Bearer ${way.token}` } },
    })
  : new StdioClientTransport({ command: way.command, args: way.args, cwd: way.dir, stderr: "ignore" });
const client = new Client({ name: "typescript", version: "1" });
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
      saw.result = await client.callTool({ name: step.tool, arguments: step.args }, undefined, options);
    }
  } catch (e) {
    saw.failed = String(e);
    saw.code = typeof e?.code === "number" ? e.code : 0;
    saw.data = e?.data;
  }
  seen.push(saw);
}
if (way.url) await transport.terminateSession();
await client.close();
console.log(JSON.stringify(seen));
