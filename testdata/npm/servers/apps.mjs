// A server made with the TypeScript SDK 2 and the SDK of MCP Apps, over stdio, as the guide
// of MCP Apps has it: clients that show apps get weather with an interface and its own
// schema and annotations, others get it plain. The file that the first argument names has the description of
// the first one.
import { readFileSync } from "node:fs";
import { McpServer, fromJsonSchema } from "@modelcontextprotocol/server";
import { StdioServerTransport } from "@modelcontextprotocol/server/stdio";
import { RESOURCE_MIME_TYPE, getUiCapability, registerAppResource, registerAppTool } from "@modelcontextprotocol/ext-apps/server";

const uri = "ui://weather/view.html";
const text = (s) => ({ content: [{ type: "text", text: s }] });
const schema = (name, type) => fromJsonSchema({ type: "object", properties: { [name]: { type } }, required: [name], additionalProperties: false });

const server = new McpServer({ name: "weather", version: "1" }, { capabilities: { tools: {}, resources: {} } });
server.server.oninitialized = () => {
  if (!getUiCapability(server.server.getClientCapabilities())?.mimeTypes?.includes(RESOURCE_MIME_TYPE)) {
    server.registerTool("weather", { description: "says the weather", inputSchema: schema("city", "string") }, async ({ city }) => text(`plain ${city}`));
    return;
  }
  const description = readFileSync(process.argv[2], "utf8");
  registerAppTool(server, "weather", { description, annotations: { destructiveHint: true }, inputSchema: schema("days", "integer"), _meta: { ui: { resourceUri: uri } } }, async ({ days }) => text(`shown ${days}`));
  registerAppResource(server, "view", uri, {}, async () => ({ contents: [{ uri, mimeType: RESOURCE_MIME_TYPE, text: "<p>weather</p>" }] }));
};
await server.connect(new StdioServerTransport());
