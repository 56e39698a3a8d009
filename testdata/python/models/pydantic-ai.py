"""Prints what Pydantic AI gives its model: see internal/peers/python_test.go."""

import asyncio
import json
import sys

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

job = json.load(sys.stdin)
definitions, read = [], []


def model(one):
    """A model that makes one call and then reads its result."""

    def answer(messages, info):
        definitions[:] = [
            {"name": t.name, "description": t.description, "parameters": t.parameters_json_schema} for t in info.function_tools
        ]
        for part in messages[-1].parts:
            if isinstance(part, RetryPromptPart):
                read.append(part.model_response())
            elif isinstance(part, ToolReturnPart):
                read.append(part.model_response_str())
            else:
                continue
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(one["name"], one["args"]) if one else TextPart("done")])

    return FunctionModel(answer)


async def main():
    headers = {"Authorization": "Bearer " + job["token"]} if job.get("token") else {}
    async with MCPToolset(job["url"], headers=headers) as tools:
        for one in job.get("calls") or [None]:
            count = len(read)
            try:
                await Agent(model(one), toolsets=[tools]).run("go")
            except Exception as e:
                read.append("[raised] " + str(e))
            del read[count + 1 :]
    return read if job.get("calls") else definitions


json.dump(asyncio.run(main()), sys.stdout)
