package evm

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/text"
)

const (
	callTimeout    = 10 * time.Second // of one request
	maxAnswerBytes = 1 << 20
	shownMessage   = 200 // bytes of a node's message
)

// ErrNode is in the chain of an error when a node gave no usable answer: whether it did
// what was asked is unknown.
var ErrNode = errors.New("the node of the chain")

// RPCError is the error with which a node answered.
type RPCError struct {
	Code    int    `json:"code"`
	Message string `json:"message"` // as the node wrote it
}

// Error quotes the node's message, shortened and without hidden characters.
func (e *RPCError) Error() string {
	return fmt.Sprintf("the node of the chain answered %q (code %d)", text.Clip(text.EscapeHidden(e.Message), shownMessage, "…"), e.Code)
}

// Node speaks JSON-RPC with a node over HTTP. Its errors never quote the URL, which may
// hold a key. It is safe for concurrent use.
type Node struct {
	url    string
	client *http.Client
}

// NewNode returns a Node at url. Nothing is sent yet.
func NewNode(url string) *Node {
	return &Node{url, &http.Client{
		Transport:     http.DefaultTransport.(*http.Transport).Clone(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (n *Node) Close() { n.client.CloseIdleConnections() }

// call sends one request and decodes the result. The error is *RPCError when the node
// answered with one, else ErrNode.
func (n *Node) call(ctx context.Context, into any, method string, params ...any) error {
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": append([]any{}, params...)})
	if err != nil {
		return fmt.Errorf("encoding %s: %w", method, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w has an address that cannot be used", ErrNode)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := n.client.Do(req)
	if err != nil {
		return fmt.Errorf("%w does not answer %s: %w", ErrNode, method, delivery.Explain(ctx, err))
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("%w does not answer %s: %w", ErrNode, method, delivery.Explain(ctx, err))
	}
	return decode(text, res.StatusCode, method, into)
}

func decode(text []byte, status int, method string, into any) error {
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  *RPCError       `json:"error"`
	}
	err := json.Unmarshal(text, &answer)
	switch {
	case err == nil && answer.Error != nil:
		return answer.Error
	case status != http.StatusOK:
		return fmt.Errorf("%w answered %s with status %d", ErrNode, method, status)
	case err != nil || answer.Result == nil || json.Unmarshal(answer.Result, into) != nil:
		return fmt.Errorf("%w sent an answer to %s that cannot be read", ErrNode, method)
	}
	return nil
}

// quantity is a number as 0x and hexadecimal digits.
type quantity struct{ n big.Int }

// UnmarshalJSON reads the digits. Null is an error.
func (q *quantity) UnmarshalJSON(text []byte) error {
	digits, ok := quoted(text)
	if _, fits := q.n.SetString(digits, 16); !ok || !fits || len(digits) > 64 || strings.ContainsAny(digits, "+-_") {
		return errors.New("no quantity")
	}
	return nil
}

// data is bytes as 0x and hexadecimal digits.
type data []byte

// UnmarshalJSON reads the digits. Null is an error.
func (d *data) UnmarshalJSON(text []byte) (err error) {
	digits, ok := quoted(text)
	if !ok {
		return errors.New("no data")
	}
	*d, err = hex.DecodeString(digits)
	return err
}

// quoted returns the digits of a JSON string that begins with 0x.
func quoted(text []byte) (digits string, ok bool) {
	digits, ok = strings.CutPrefix(string(text), `"0x`)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(digits, `"`)
}
