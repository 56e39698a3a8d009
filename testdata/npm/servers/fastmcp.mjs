// A server made with fastmcp, over stdio.
import { FastMCP, UserError, imageContent } from "fastmcp";
import { z } from "zod";

const server = new FastMCP({ name: "fastmcp", version: "1.0.0" });

server.addTool({
  name: "add",
  description: "Adds numbers: <a> & <b> über 😀",
  annotations: { title: "Add", readOnlyHint: true, openWorldHint: false },
  parameters: z.object({
    a: z.number().describe("first").default(1e21),
    b: z.number().min(-0.5).max(1e2),
    unit: z.enum(["m", "ft"]).optional(),
    deep: z.object({ list: z.array(z.union([z.string(), z.null()])).max(3) }).optional(),
  }),
  execute: async ({ a, b }) => String(a + b),
});

const pixel = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");
server.addTool({
  name: "mixed",
  description: "Answers with text and an image",
  execute: async () => ({ content: [{ type: "text", text: "one\n\u2028two" }, await imageContent({ buffer: pixel })] }),
});

server.addTool({
  name: "refuse",
  description: "Fails with words for the user",
  parameters: z.object({ why: z.string() }),
  execute: async ({ why }) => {
    throw new UserError(`not today: ${why}`);
  },
});

server.addResource({ uri: "note://one", name: "one", mimeType: "text/plain", load: async () => ({ text: "a note, <&>" }) });
server.addPrompt({
  name: "greet",
  arguments: [{ name: "who", required: true, enum: ["Ada", "Alan"] }],
  load: async ({ who }) => `Greet ${who}`,
});

server.start({ transportType: "stdio" });
