"""An MCP server with one tool, on standard input and output."""

from mcp.server import MCPServer

app = MCPServer("adder")


@app.tool()
def add_up(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    app.run(transport="stdio")
