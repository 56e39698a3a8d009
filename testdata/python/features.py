"""An MCP server with every feature that FastMCP has, over Streamable HTTP, for the tests.

Its argument is the port on 127.0.0.1. Every answer is the same at each run.
"""

import asyncio
import sys
from typing import Annotated

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.types import Image
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel, Field

mcp = FastMCP("features", instructions="Every feature, for tests.")

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)


class Weather(BaseModel):
    """What the weather is like."""

    city: str
    celsius: float = Field(description="Degrees")
    tags: list[str] = []


@mcp.tool
def echo(text: Annotated[str, Field(description="What to say", max_length=100)], times: int = 1) -> str:
    """Says it again.

    As often as it is told.
    """
    return " ".join([text] * times)


@mcp.tool(annotations={"readOnlyHint": True, "title": "Weather"})
def weather(city: str) -> Weather:
    """The weather of a city."""
    return Weather(city=city, celsius=21.5, tags=["sunny", "\u00fcber"])


@mcp.tool
def fails(reason: str) -> str:
    """Fails for a reason."""
    raise ToolError(f"it failed: {reason}")


@mcp.tool
def picture() -> Image:
    """One pixel."""
    return Image(data=PIXEL, format="png")


@mcp.tool
async def counts(to: int, ctx: Context) -> int:
    """Counts and reports progress."""
    for n in range(to):
        await ctx.report_progress(n + 1, to, f"at {n + 1}")
    return to


@mcp.tool
async def logs(line: str, ctx: Context) -> str:
    """Logs a line."""
    await ctx.info(line)
    return "logged"


@mcp.tool
async def asks(ctx: Context) -> str:
    """Asks the model of the client."""
    question = SamplingMessage(role="user", content=TextContent(type="text", text="What is 6 times 7?"))
    answer = await ctx.session.create_message(messages=[question], max_tokens=10)
    return f"the model says {answer.content.text}"


@mcp.tool
async def elicits(ctx: Context) -> str:
    """Asks the person in front of the client."""
    answer = await ctx.elicit("Your name?", response_type=str)
    return f"{answer.action}: {getattr(answer, 'data', None)}"


@mcp.tool
async def sleeps() -> str:
    """Sleeps for an hour."""
    await asyncio.sleep(3600)
    return "awake"


@mcp.resource("note://today", mime_type="text/plain")
def today() -> str:
    """What to do today."""
    return "water the plants"


@mcp.resource("note://{day}/list")
def day(day: str) -> str:
    """What to do on a day."""
    return f"nothing on {day}"


@mcp.prompt
def plan(goal: str) -> str:
    """Plans how to reach a goal."""
    return f"Make a plan to {goal}."


@mcp.completion
def complete(ref, argument, context):
    """Completes the goal of the plan."""
    return [goal for goal in ("grow tomatoes", "grow up") if goal.startswith(argument.value)]


if __name__ == "__main__":
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, log_level="WARNING")
