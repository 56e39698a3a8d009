// Makes calls as the OpenAI Agents SDK makes those of its model, and prints what the
// model reads after each: the output of its function call. stdin is {url, token, calls},
// stdout an array.
import { readFileSync } from "node:fs";
import { Agent, MCPServerStreamableHttp, Runner, Usage, setTracingDisabled } from "@openai/agents-core";

const { url, token, calls } = JSON.parse(readFileSync(0, "utf8"));
setTracingDisabled(true);
const server = new MCPServerStreamableHttp({ url, requestInit: { headers: { Authorization: `Bearer ${token}` } } });
await server.connect();

// A model that makes one call, and keeps what it reads next.
class Model {
  constructor(call) {
    this.call = call;
  }
  async getResponse({ input }) {
    const result = Array.isArray(input) && input.find((item) => item.type === "function_call_result");
    this.read = result?.output;
    const { name, args } = this.call;
    const output = result
      ? { type: "message", role: "assistant", status: "completed", content: [{ type: "output_text", text: "done" }] }
      : { type: "function_call", callId: "1", name, status: "completed", arguments: JSON.stringify(args) };
    return { usage: new Usage(), output: [output] };
  }
}

const read = [];
for (const call of calls) {
  const model = new Model(call);
  await new Runner().run(new Agent({ name: "agent", model, mcpServers: [server] }), "go");
  read.push(model.read);
}
await server.close();
console.log(JSON.stringify(read));
