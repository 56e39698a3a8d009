// A server made with the TypeScript SDK 2, over stdio, for revisions with a session and
// without. Its tools ask within a call, as earlier revisions allow; the tool ask is
// written for all revisions.
import { McpServer, acceptedContent, fromJsonSchema, inputRequired, inputResponse } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

const form = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
const sampling = { maxTokens: 9, messages: [{ role: "user", content: { type: "text", text: "of what" } }] };
const text = (s) => ({ content: [{ type: "text", text: s }] });

serveStdio(() => {
  const server = new McpServer({ name: "typescript", version: "2" }, { capabilities: { logging: {} } });
  const add = (name, run) => server.registerTool(name, { inputSchema: fromJsonSchema({ type: "object" }) }, run);

  add("sample", async (_, ctx) => {
    const { model, content } = await ctx.mcpReq.requestSampling(sampling);
    return text(`${model}: ${content.text}`);
  });
  add("elicit", async (_, ctx) => {
    const { action, content } = await ctx.mcpReq.elicitInput({ mode: "form", message: "who", requestedSchema: form });
    return text(`${action}: ${content.name}`);
  });
  add("roots", async () => text((await server.server.listRoots()).roots.map((root) => root.uri).join(" ")));
  add("ask", async (_, ctx) => {
    const answers = ctx.mcpReq.inputResponses;
    const who = acceptedContent(answers, "who");
    if (!who)
      return inputRequired({
        inputRequests: {
          who: inputRequired.elicit({ message: "who", requestedSchema: form }),
          poem: inputRequired.createMessage(sampling),
          places: inputRequired.listRoots(),
        },
      });
    return text(`${who.name}, ${inputResponse(answers, "poem").kind}, ${inputResponse(answers, "places").kind}`);
  });
  add("report", async (_, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (const progress of [1, 2]) if (progressToken !== undefined) await ctx.mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress } });
    await ctx.mcpReq.log("info", "working");
    return text("reported");
  });
  return server;
});
