// Makes calls as LangChain makes those of its model, and prints what the model reads
// after each: the content of the tool message. stdin is {url, token, calls}, stdout an
// array.
import { readFileSync } from "node:fs";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage } from "@langchain/core/messages";
import { createReactAgent } from "@langchain/langgraph/prebuilt";
import { MultiServerMCPClient } from "@langchain/mcp-adapters";

const { url, token, calls } = JSON.parse(readFileSync(0, "utf8"));
const client = new MultiServerMCPClient({ mcpServers: { gate: { transport: "http", url, headers: { Authorization: `Bearer ${token}` } } } });
const tools = await client.getTools();

// A model that makes one call, and keeps what it reads next.
class Model extends BaseChatModel {
  constructor(call) {
    super({});
    this.call = call;
  }
  _llmType() {
    return "test";
  }
  bindTools() {
    return this;
  }
  async _generate(messages) {
    const last = messages.at(-1);
    const message = last.getType() === "tool" ? new AIMessage("done") : new AIMessage({ content: "", tool_calls: [{ id: "1", ...this.call }] });
    if (last.getType() === "tool") this.read = last.content;
    return { generations: [{ text: "", message }] };
  }
}

const read = [];
for (const call of calls) {
  const model = new Model(call);
  await createReactAgent({ llm: model, tools }).invoke({ messages: [{ role: "user", content: "go" }] });
  read.push(model.read);
}
await client.close();
console.log(JSON.stringify(read));
