// Package tools is the MCP server of the standard tools: search_internet,
// generate_media and manage_wallet, with the contracts of package contract and
// the backends that work offline. It governs nothing: the road in front of it
// does. Arguments are read from their bytes, so numbers of any size stay exact.
package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"runtime/debug"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/toolgate/toolgate/registry/contract"
	"github.com/toolgate/toolgate/tools/media"
	"github.com/toolgate/toolgate/tools/search"
	"github.com/toolgate/toolgate/tools/wallet"
)

// Searcher finds documents.
type Searcher interface {
	// Search gives at most n results, best first. It is called concurrently.
	Search(ctx context.Context, query string, n int) ([]search.Result, error)
}

// Renderer makes pictures.
type Renderer interface {
	// Render makes one picture; aspect "" is the renderer's own choice. It is
	// called concurrently.
	Render(ctx context.Context, prompt, aspect, model string) (media.Picture, error)
}

// Ledger keeps a wallet.
type Ledger interface {
	// Balances gives the balance of asset, of every asset when it is "".
	Balances(ctx context.Context, asset string) ([]wallet.Balance, error)
	// Transfer moves amount, the lexeme of a JSON number, and returns when the
	// transfer is durable. After an error nothing has moved.
	Transfer(ctx context.Context, asset, amount, destination string) (wallet.Transaction, error)
}

var (
	_ Searcher = (*search.Index)(nil)
	_ Renderer = (*media.Renderer)(nil)
	_ Ledger   = (*wallet.Wallet)(nil)
)

// Options are the settings of Serve.
type Options struct {
	Dir    string    // directory of what the tools keep (wallet.db); required, created when missing
	Docs   string    // folder of documents to search; "" = those that come with the program
	Models []string  // models of generate_media; none = all of package media
	Log    io.Writer // what the server itself has to say, one line each; nil = nowhere
}

// Serve speaks MCP over in and out, a message per line, until in ends or ctx
// does; both are a clean end and return nil. A transfer that runs when they end is
// finished first. When ctx ends, a Read of in that is under way is left behind.
// mcp-go knows one stdio session per process: Serve must not run twice at a
// time.
func Serve(ctx context.Context, opts Options, in io.Reader, out io.Writer) error {
	s, closeAll, err := newServer(ctx, opts)
	if err != nil {
		return fmt.Errorf("starting standard tools: %w", err)
	}
	stdio := server.NewStdioServer(s)
	logTo := io.Discard
	if opts.Log != nil {
		logTo = opts.Log
	}
	stdio.SetErrorLogger(log.New(logTo, "", 0))
	err = stdio.Listen(ctx, in, out)
	if ctx.Err() != nil {
		err = nil
	}
	if err = errors.Join(err, closeAll()); err != nil {
		return fmt.Errorf("serving standard tools: %w", err)
	}
	return nil
}

// newServer opens the backends and binds the tools to them.
func newServer(ctx context.Context, opts Options) (*server.MCPServer, func() error, error) {
	index, err := openIndex(opts.Docs)
	if err != nil {
		return nil, nil, err
	}
	renderer, err := media.New(opts.Models)
	if err != nil {
		return nil, nil, errors.Join(err, index.Close())
	}
	ledger, err := wallet.Open(ctx, filepath.Join(opts.Dir, "wallet.db"))
	if err != nil {
		return nil, nil, errors.Join(err, index.Close())
	}
	closeAll := func() error { return errors.Join(index.Close(), ledger.Close()) }
	s, err := bind(handlers(index, renderer, ledger))
	if err != nil {
		return nil, nil, errors.Join(err, closeAll())
	}
	return s, closeAll, nil
}

func openIndex(folder string) (*search.Index, error) {
	docs, err := search.Embedded()
	if folder != "" {
		docs, err = search.Folder(folder)
	}
	if err != nil {
		return nil, err
	}
	return search.New(docs)
}

// bind makes a server that offers every contract. A contract without a handler
// is an error, and so is a handler without a contract.
func bind(by map[string]server.ToolHandlerFunc) (*server.MCPServer, error) {
	s := server.NewMCPServer("toolgate-tools", version(), server.WithToolCapabilities(false), server.WithRecovery())
	contracts := contract.Tools()
	if len(contracts) != len(by) {
		return nil, fmt.Errorf("binding tools: %d contracts, %d handlers", len(contracts), len(by))
	}
	for _, c := range contracts {
		handler, ok := by[c.Name]
		if !ok {
			return nil, fmt.Errorf("binding tools: nothing handles %s", c.Name)
		}
		tool, err := toolOf(c)
		if err != nil {
			return nil, err
		}
		s.AddTool(tool, handler)
	}
	return s, nil
}

// toolOf carries a contract over with its schemas as they are.
func toolOf(c contract.Tool) (mcp.Tool, error) {
	var d struct {
		Name         string             `json:"name"`
		Title        string             `json:"title"`
		Description  string             `json:"description"`
		InputSchema  json.RawMessage    `json:"inputSchema"`
		OutputSchema json.RawMessage    `json:"outputSchema"`
		Annotations  mcp.ToolAnnotation `json:"annotations"`
	}
	if err := json.Unmarshal(c.Definition, &d); err != nil {
		return mcp.Tool{}, fmt.Errorf("reading contract of %s: %w", c.Name, err)
	}
	return mcp.Tool{
		Name: d.Name, Title: d.Title, Description: d.Description, Annotations: d.Annotations,
		RawInputSchema: d.InputSchema, RawOutputSchema: d.OutputSchema,
	}, nil
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
