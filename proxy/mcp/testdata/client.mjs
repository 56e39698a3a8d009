// Lists and calls tools with the TypeScript SDK's client and prints what it saw.
import { pathToFileURL } from "node:url";
import { join } from "node:path";

const [url, modules] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(join(modules, "@modelcontextprotocol/sdk/dist/esm/client", file)));
const { Client } = await load("index.js");
const { StreamableHTTPClientTransport } = await load("streamableHttp.js");

const transport = new StreamableHTTPClientTransport(new URL(url), {
  requestInit: { headers: { Authorization: "Bearer alice-token" } },
});
const client = new Client({ name: "typescript", version: "1" });
await client.connect(transport);

const seen = { Tools: (await client.listTools()).tools.length, Progress: 0 };
const steps = await client.callTool({ name: "demo__steps", arguments: { a: 1 } }, undefined, {
  onprogress: () => seen.Progress++,
});
seen.Text = steps.content[0].text;
try {
  await client.callTool({ name: "demo__limited" });
} catch (e) {
  seen.Limited = { Code: e.code, Data: e.data };
}
const abort = new AbortController();
await client
  .callTool({ name: "demo__wait" }, undefined, {
    signal: abort.signal,
    onprogress: () => abort.abort("no longer wanted"), // it has begun
  })
  .catch(() => {});
seen.After = (await client.callTool({ name: "demo__echo", arguments: { b: 2 } })).content[0].text;
await transport.terminateSession();
await client.close();
console.log(JSON.stringify(seen));
