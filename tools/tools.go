// Package tools is the MCP server of the standard tools search_internet,
// generate_media and manage_wallet, with the contracts of package contract. Their
// backends are offline unless Options choose others; fetch_page is offered only then.
// It checks no permissions: toolgate does so before it calls the
// server. Arguments are decoded from their bytes, so numbers of any size stay exact.
package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/toolgate/toolgate/registry/contract"
	"github.com/toolgate/toolgate/tools/chain"
	"github.com/toolgate/toolgate/tools/media"
	"github.com/toolgate/toolgate/tools/page"
	"github.com/toolgate/toolgate/tools/search"
	"github.com/toolgate/toolgate/tools/webmedia"
	"github.com/toolgate/toolgate/tools/websearch"
)

// Options are the settings of Serve.
type Options struct {
	Dir  string    // directory of what the tools keep: wallet.db or chain.db, media.db; required, created if missing
	Docs string    // folder of documents to search, where Backends have none; "" for the embedded ones
	Log  io.Writer // log of the server, one line per message; nil for none

	Backends Backends
	Version  string // of the program, for handshakes

	ProgressEvery time.Duration // between notifications of a call's progress; 0 = 5 s
}

// Backends choose who does the work of the tools. The tags are the members of the file
// that package config reads by docs/schemas/backends.json.
type Backends struct {
	Search *websearch.Options `json:"search"` // nil for the documents
	Fetch  *page.Options      `json:"fetch"`  // nil for no fetch_page
	Media  *webmedia.Options  `json:"media"`  // nil for the offline renderer
	Wallet *chain.Options     `json:"wallet"` // nil for the paper wallet
}

// Contracts returns the contracts of the tools that are served with b.
func (b Backends) Contracts() []contract.Tool { return contract.Tools(b.tools()...) }

// tools are the names of the tools with a chosen backend.
func (b Backends) tools() (names []string) {
	if b.Search != nil {
		names = append(names, "search_internet")
	}
	if b.Fetch != nil {
		names = append(names, "fetch_page")
	}
	if b.Media != nil {
		names = append(names, "generate_media")
	}
	if b.OnChain() {
		names = append(names, "manage_wallet")
	}
	return names
}

// Searcher finds documents or pages, best first. Its methods are safe for concurrent use.
type Searcher interface {
	Search(ctx context.Context, query string, n int) ([]search.Result, error)
	Provider() string // named in results
	Close() error
}

// Maker makes images. Its methods are safe for concurrent use.
type Maker interface {
	Make(ctx context.Context, r media.Request) (media.Picture, error)
}

// Serve speaks MCP over in and out, one message per line, until in or ctx ends; both
// return nil. It finishes a running transfer first. When ctx ends, a Read of in may
// still be blocked. mcp-go has one stdio session per process: Serve must not run
// twice at a time.
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
	searcher, err := openSearch(opts)
	if err != nil {
		return nil, nil, err
	}
	maker, closeMedia, err := openMedia(ctx, opts)
	if err != nil {
		return nil, nil, errors.Join(err, searcher.Close())
	}
	payer, closeWallet, err := openWallet(ctx, opts)
	if err != nil {
		return nil, nil, errors.Join(err, searcher.Close(), closeMedia())
	}
	b := backends{searcher: searcher, maker: maker, wallet: payer, every: cmp.Or(opts.ProgressEvery, 5*time.Second)}
	closeAll := func() error { return errors.Join(searcher.Close(), closeMedia(), closeWallet()) }
	if fetch := opts.Backends.Fetch; fetch != nil {
		with := *fetch
		with.Version = opts.Version
		b.fetcher = page.New(with)
	}
	s, err := bind(opts.Version, opts.Backends.Contracts(), b.handlers())
	if err != nil {
		return nil, nil, errors.Join(err, closeAll())
	}
	return s, closeAll, nil
}

// openSearch opens the service that opts choose, or the documents.
func openSearch(opts Options) (Searcher, error) {
	chosen := opts.Backends.Search
	if chosen == nil {
		return openIndex(opts.Docs)
	}
	if chosen.Provider == "local" {
		return openIndex(cmp.Or(chosen.Folder, opts.Docs))
	}
	with := *chosen
	with.Version, with.Log = opts.Version, opts.Log
	return websearch.New(with)
}

// openMedia opens the service that opts choose, or the renderer.
func openMedia(ctx context.Context, opts Options) (Maker, func() error, error) {
	chosen := opts.Backends.Media
	if chosen == nil || chosen.Provider == "render" {
		return media.Renderer{}, func() error { return nil }, nil
	}
	with := *chosen
	with.Path, with.Version, with.Log = filepath.Join(opts.Dir, "media.db"), opts.Version, opts.Log
	e, err := webmedia.New(ctx, with)
	if err != nil {
		return nil, nil, err
	}
	return e, e.Close, nil
}

func openIndex(folder string) (Searcher, error) {
	docs, err := search.Embedded()
	if folder != "" {
		docs, err = search.Folder(folder)
	}
	if err != nil {
		return nil, err
	}
	return search.New(docs)
}

// bind returns a server that offers tools.
func bind(version string, tools []contract.Tool, by map[string]server.ToolHandlerFunc) (*server.MCPServer, error) {
	s := server.NewMCPServer("toolgate-tools", version, server.WithToolCapabilities(false), server.WithRecovery())
	for _, c := range tools {
		tool, err := toolOf(c)
		if err != nil {
			return nil, err
		}
		s.AddTool(tool, by[c.Name])
	}
	return s, nil
}

// toolOf returns a contract as an mcp-go tool with its schemas unchanged.
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
