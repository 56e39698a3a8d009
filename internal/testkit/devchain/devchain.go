// Package devchain starts Ethereum nodes for tests, each on a chain of its own with ten
// rich accounts, and puts a switch for faults before each.
//
// The node is Anvil, from testdata/npm/chain. TOOLGATE_CHAIN names another program that
// takes the flags of testdata/chain, which is the simulated backend of go-ethereum;
// testdata/npm/hardhat/chain.cjs is Hardhat's.
package devchain

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/evm"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/internal/testkit/npm"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// ID is the id of every chain.
const ID = 1337

// Keys are the private keys of the first accounts, and Accounts their addresses. They
// are those of every development chain.
var (
	Keys = []string{
		"ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80", "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d",
		"5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a",
	}
	Accounts = []string{"0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", "0x70997970C51812dc3A010C7d01b50e0d17dc79C8", "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"}
)

// factory deploys contracts (CREATE2); every development chain has it.
const factory = "0x4e59b44847b379578588920cA78FbF26c0B4956C"

// Chain is one running node.
type Chain struct {
	URL     string    // of the switch
	Node    *evm.Node // of the node itself, without faults
	Process *program.Process

	direct string
	mu     sync.Mutex // protects the fields below
	fault  Fault
	sent   []string
}

// Fault says what happens to a request: it gets the method and returns how the request
// ends. It may be called concurrently.
type Fault func(method string) Outcome

// Outcome is how a request ends.
type Outcome int

// The outcomes of a request.
const (
	Works     Outcome = iota
	Down              // the connection ends before the node sees the request
	Unheard           // the node does what is asked, and the connection ends before its answer
	Forgotten         // the answer is that of success, and the node never sees the request
)

// Start starts a node whose blocks appear when Mine is called.
func Start(t testing.TB) *Chain {
	t.Helper()
	p, address := program.LaunchAt(t, func(address string) *exec.Cmd { return command(t, address) })
	c := &Chain{Process: p, direct: "http://" + address}
	c.Node = evm.NewNode(c.direct)
	t.Cleanup(c.Node.Close)
	at, err := url.Parse(c.direct)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(at)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serve(proxy, w, r) }))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

func command(t testing.TB, address string) *exec.Cmd {
	if own := os.Getenv("TOOLGATE_CHAIN"); own != "" {
		return exec.Command(own, "-listen", address, "-interval", "0")
	}
	_, port, _ := strings.Cut(address, ":")
	return exec.Command(npm.Anvil(t), "--port", port, "--chain-id", fmt.Sprint(ID), "--no-mining", "--silent")
}

// Break makes requests fail from now on; nil mends them.
func (c *Chain) Break(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

// Sent returns the transactions that were sent through the switch, as hexadecimal digits.
func (c *Chain) Sent() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.sent...)
}

func (c *Chain) serve(proxy http.Handler, w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // a broken request is not JSON
	var request struct {
		Method string `json:"method"`
		Params []any  `json:"params"`
	}
	_ = json.Unmarshal(body, &request) // as above
	c.mu.Lock()
	fault := c.fault
	if request.Method == "eth_sendRawTransaction" && len(request.Params) == 1 {
		c.sent = append(c.sent, fmt.Sprint(request.Params[0]))
	}
	c.mu.Unlock()
	outcome := Works
	if fault != nil {
		outcome = fault(request.Method)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch outcome {
	case Works:
		proxy.ServeHTTP(w, r)
	case Forgotten:
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":"0x%064x"}`, 0)
	case Unheard:
		proxy.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case Down:
		panic(http.ErrAbortHandler)
	}
}

// Call asks the node itself and returns the result.
func (c *Chain) Call(t testing.TB, method string, params ...any) json.RawMessage {
	t.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": append([]any{}, params...)})
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Post(c.direct, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct{ Result, Error json.RawMessage }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Error != nil {
		t.Fatalf("%s: %s, %v", method, answer.Error, err)
	}
	return answer.Result
}

// Mine makes blocks.
func (c *Chain) Mine(t testing.TB, blocks int) {
	t.Helper()
	for range blocks {
		c.Call(t, "evm_mine")
	}
}

// RaiseFees makes a block whose base fee is this many wei for a unit of gas, or more:
// transactions that offer less wait.
func (c *Chain) RaiseFees(t testing.TB, wei int64) {
	t.Helper()
	c.Call(t, "hardhat_setNextBlockBaseFeePerGas", fmt.Sprintf("%#x", wei))
	c.Mine(t, 1)
}

// Reorg replaces the newest blocks by others.
func (c *Chain) Reorg(t testing.TB, depth int) {
	t.Helper()
	c.Call(t, "anvil_reorg", depth, []any{})
}

// Balance returns what an account has, in wei.
func (c *Chain) Balance(t testing.TB, account string) *big.Int {
	t.Helper()
	return must(t)(c.Node.Balance(t.Context(), address(t, account)))
}

// TokenBalance returns what an account has of a token.
func (c *Chain) TokenBalance(t testing.TB, token, account string) *big.Int {
	t.Helper()
	return must(t)(c.Node.TokenBalance(t.Context(), address(t, token), address(t, account)))
}

func must(t testing.TB) func(*big.Int, error) *big.Int {
	return func(n *big.Int, err error) *big.Int {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func address(t testing.TB, text string) evm.Address {
	t.Helper()
	a, err := evm.ParseAddress(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Deploy deploys the token of testdata/chain/token and returns its address. All of its
// 1000 units, with 6 decimals, are the first account's. The last account that has a key pays for it.
func (c *Chain) Deploy(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), "testdata", "chain", "token", "token.hex"))
	if err != nil {
		t.Fatal(err)
	}
	code, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	owner, maker := address(t, Accounts[0]), address(t, factory)
	code = append(append(code, make([]byte, 12)...), owner[:]...)
	salt, sum := make([]byte, 32), evm.Keccak(code)
	c.Pay(t, 2, &evm.Transaction{To: maker, Value: new(big.Int), Gas: 2_000_000, Data: append(append([]byte{}, salt...), code...)})
	c.Mine(t, 1)
	made := evm.Keccak(append(append(append([]byte{0xff}, maker[:]...), salt...), sum[:]...))
	return evm.Address(made[12:]).String()
}

// Broadcast hands the node a signed transaction, as other nodes of a network do that have
// it. It may have it already.
func (c *Chain) Broadcast(t testing.TB, raw string) {
	t.Helper()
	text, err := hex.DecodeString(strings.TrimPrefix(raw, "0x"))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Node.Send(t.Context(), text) // refused where it is in a block
}

// Pay signs a transaction with a key and sends it; its fees and nonce are filled in.
func (c *Chain) Pay(t testing.TB, key int, tx *evm.Transaction) evm.Hash {
	t.Helper()
	signer, err := evm.NewKey(Keys[key])
	if err != nil {
		t.Fatal(err)
	}
	tx.ChainID, tx.Tip, tx.GasFee = ID, big.NewInt(2e9), big.NewInt(1e11)
	if tx.Nonce == 0 {
		if tx.Nonce, err = c.Node.NextNonce(t.Context(), signer.Address()); err != nil {
			t.Fatal(err)
		}
	}
	raw, hash, err := tx.Sign(t.Context(), signer)
	if err == nil {
		err = c.Node.Send(t.Context(), raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return hash
}
