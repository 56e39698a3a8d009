package tools

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/toolgate/toolgate/tools/media"
	"github.com/toolgate/toolgate/tools/page"
	"github.com/toolgate/toolgate/tools/search"
)

// ErrArguments is in the chain of a handler's error when the arguments do not match
// the contract. toolgate refuses such calls before it forwards them.
var ErrArguments = errors.New("bad arguments")

// defaultResults is the contract's default of num_results.
const defaultResults = 5

// backends do the work of the tools.
type backends struct {
	searcher Searcher
	fetcher  *page.Fetcher // nil without fetch_page
	maker    Maker
	wallet   payer
	every    time.Duration // between notifications of progress
}

// handlers are the tools by name. An error of a handler becomes a JSON-RPC error,
// which the specification of the standard tools requires for internal failures.
func (b backends) handlers() map[string]server.ToolHandlerFunc {
	return map[string]server.ToolHandlerFunc{
		"search_internet": handler(b.search), "generate_media": reporting(b.every, handler(b.generateMedia)), "manage_wallet": handler(b.manageWallet),
		"fetch_page": handler(b.fetchPage),
	}
}

// handler decodes the argument bytes strictly: names in their exact case, no
// duplicate and no unknown members.
func handler[A any](do func(context.Context, A) (*mcp.CallToolResult, error)) server.ToolHandlerFunc {
	return func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var in A
		raw := req.Params.RawArguments
		if len(raw) == 0 {
			raw = []byte("{}")
		}
		if err := json.Unmarshal(raw, &in, json.RejectUnknownMembers(true)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrArguments, err)
		}
		return do(ctx, in)
	}
}

type searchArgs struct {
	Query      string   `json:"query"`
	NumResults *float64 `json:"num_results"`
}

func (b backends) search(ctx context.Context, in searchArgs) (*mcp.CallToolResult, error) {
	n, err := whole(in.NumResults, defaultResults)
	if err != nil {
		return nil, fmt.Errorf("%w: num_results %w", ErrArguments, err)
	}
	results, err := b.searcher.Search(ctx, in.Query, n)
	if err != nil {
		return refused(err)
	}
	return structured(struct {
		Provider  string          `json:"provider"`
		Untrusted bool            `json:"untrusted"`
		Results   []search.Result `json:"results"`
	}{b.searcher.Provider(), true, results})
}

// defaultCharacters and maxCharacters are the contract's bounds of max_characters.
const (
	defaultCharacters = 10_000
	maxCharacters     = 100_000
)

type fetchArgs struct {
	URL           string   `json:"url"`
	Format        string   `json:"format"`
	MaxCharacters *float64 `json:"max_characters"`
}

func (b backends) fetchPage(ctx context.Context, in fetchArgs) (*mcp.CallToolResult, error) {
	n, err := whole(in.MaxCharacters, defaultCharacters)
	format := cmp.Or(in.Format, page.Markdown)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: max_characters %w", ErrArguments, err)
	case n < 1 || n > maxCharacters:
		return nil, fmt.Errorf("%w: max_characters is %d, must be 1 to %d", ErrArguments, n, maxCharacters)
	case format != page.Markdown && format != page.Text:
		return nil, fmt.Errorf("%w: unknown format %.64q", ErrArguments, format)
	}
	p, err := b.fetcher.Fetch(ctx, in.URL, format, n)
	if err != nil {
		return refused(err)
	}
	return structured(p)
}

// refused makes the result of a call that a service or a page refuses, which is no
// internal failure: the model reads why. All other errors stay errors.
func refused(err error) (*mcp.CallToolResult, error) {
	if refusal, ok := errors.AsType[interface {
		error
		Refused() string
	}](err); ok {
		return mcp.NewToolResultError(refusal.Refused()), nil
	}
	return nil, err
}

var errWhole = errors.New("is not an integer")

// whole returns a number of JSON, which may be written as 5.0 or 5e0, as an integer.
func whole(number *float64, absent int) (int, error) {
	if number == nil {
		return absent, nil
	}
	n := int(*number)
	if float64(n) != *number {
		return 0, errWhole
	}
	return n, nil
}

type mediaArgs struct {
	Prompt      string `json:"prompt"`
	AspectRatio string `json:"aspect_ratio"`
	Model       string `json:"model"`
	Format      string `json:"format"`
}

func (b backends) generateMedia(ctx context.Context, in mediaArgs) (*mcp.CallToolResult, error) {
	p, err := b.maker.Make(ctx, media.Request{Prompt: in.Prompt, Aspect: in.AspectRatio, Model: in.Model, Format: in.Format})
	if err != nil {
		return refused(err)
	}
	result, err := structured(struct {
		Provider string  `json:"provider"`
		Model    string  `json:"model"`
		MIME     string  `json:"mime"`
		Width    int     `json:"width"`
		Height   int     `json:"height"`
		Bytes    int     `json:"bytes"`
		SHA256   string  `json:"sha256"`
		Cost     float64 `json:"cost_estimate_usd,omitzero"`
	}{p.Provider, p.Model, p.MIME, p.Width, p.Height, len(p.Data), p.SHA256, p.Cost})
	if err != nil {
		return nil, err
	}
	result.Content = append([]mcp.Content{mcp.NewImageContent(base64.StdEncoding.EncodeToString(p.Data), p.MIME)}, result.Content...)
	return result, nil
}

// reporting wraps a handler that may work for long. While it works, a caller that asks
// for progress gets a notification in every interval, so that its time-out does not end
// the call.
func reporting(every time.Duration, do server.ToolHandlerFunc) server.ToolHandlerFunc {
	return func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		s := server.ServerFromContext(ctx)
		if s == nil || req.Params.Meta == nil || req.Params.Meta.ProgressToken == nil {
			return do(ctx, req)
		}
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { report(ctx, s, req.Params.Meta.ProgressToken, every, done) })
		defer wg.Wait()
		defer close(done)
		return do(ctx, req)
	}
}

// report sends progress, in seconds, until done or ctx ends. A client that cannot be
// notified still gets its result.
func report(ctx context.Context, s *server.MCPServer, token mcp.ProgressToken, every time.Duration, done <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_ = s.SendNotificationToClient(ctx, "notifications/progress", map[string]any{
			"progressToken": token, "progress": float64(n) * every.Seconds(), "message": "the image is being made",
		})
	}
}

// structured returns v as structured content and as the same JSON in text, for
// clients without structured content.
func structured(v any) (*mcp.CallToolResult, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding result: %w", err)
	}
	return mcp.NewToolResultStructured(jsontext.Value(text), string(text)), nil
}
