// Makes calls as the AI SDK makes those of its model, and prints what the model reads
// after each: the tool message in the prompt of its next step. stdin is {url, token,
// calls}, stdout an array.
import { readFileSync } from "node:fs";
import { createMCPClient } from "@ai-sdk/mcp";
import { generateText, isStepCount } from "ai";
import { MockLanguageModelV4 } from "ai/test";

const { url, token, calls } = JSON.parse(readFileSync(0, "utf8"));
const client = await createMCPClient({ transport: { type: "http", url, headers: { Authorization: `Bearer ${token}` } } });
const tools = await client.tools();

const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const step = (content, reason) => ({ content: [content], finishReason: { unified: reason, raw: reason }, usage, warnings: [] });

const read = [];
for (const { name, args } of calls) {
  const call = { type: "tool-call", toolCallId: "1", toolName: name, input: JSON.stringify(args) };
  const model = new MockLanguageModelV4({ doGenerate: [step(call, "tool-calls"), step({ type: "text", text: "done" }, "stop")] });
  await generateText({ model, tools, prompt: "go", stopWhen: isStepCount(2) });
  read.push(model.doGenerateCalls[1].prompt.at(-1).content[0].output);
}
await client.close();
console.log(JSON.stringify(read));
