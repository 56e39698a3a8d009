// Command chain is a development chain: go-ethereum's simulated backend behind JSON-RPC
// on a loopback address, with ten accounts that have 10,000 ETH each. Their keys are those
// that Hardhat and Anvil use, from the mnemonic "test test test test test test test test
// test test test junk"; everybody knows them.
//
//	chain -listen 127.0.0.1:8545 -interval 1s
//
// With -interval 0, a block appears when evm_mine is called. evm_mine, anvil_reorg [depth]
// and hardhat_setNextBlockBaseFeePerGas [wei] are the methods that it has besides those of
// a node.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/ethclient/simulated"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/rpc"
)

// accounts are the first ten of the mnemonic.
var accounts = []string{
	"0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", "0x70997970C51812dc3A010C7d01b50e0d17dc79C8", "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
	"0x90F79bf6EB2c4f870365E785982E1f101E93b906", "0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65", "0x9965507D1a55bcC2695C58ba16FB37d819B0A4dc",
	"0x976EA74026E726554dB657fA54763abd0C3a0aa9", "0x14dC79964da2C08b23698B3D3cc7Ca32193d9955", "0x23618e81E3f5cdF7f54C3d65f7FBc0aBf5B21E8f",
	"0xa0Ee7A142d267C1f36714E4a8F75612F20a79720",
}

// factory deploys contracts at addresses that are known beforehand (CREATE2): the
// deterministic deployment proxy, which Anvil has too.
const factory = "0x4e59b44847b379578588920cA78FbF26c0B4956C"

var factoryCode = common.FromHex("0x7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffe03601600081602082378035828234f58015156039578182fd5b8082525050506014600cf3")

func main() {
	listen := flag.String("listen", "127.0.0.1:8545", "loopback `address` to listen on")
	interval := flag.Duration("interval", time.Second, "`time` between blocks; 0 = on demand")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *interval); err != nil {
		fmt.Fprintln(os.Stderr, "chain:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen string, interval time.Duration) error {
	c, err := start()
	if err != nil {
		return err
	}
	defer c.close()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() {
		return errors.New("the address is not loopback: everybody knows the keys of the accounts")
	}
	fmt.Printf("chain 1337 at http://%s\n", l.Addr())
	server := &http.Server{Handler: c, ReadHeaderTimeout: 5 * time.Second}
	var wg sync.WaitGroup
	defer wg.Wait()
	if interval > 0 {
		wg.Go(func() { c.mineEvery(ctx, interval) })
	}
	wg.Go(func() {
		<-ctx.Done()
		server.Close()
	})
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

// blockGas is the limit of gas of a block, and lastKey the key of the last account.
const (
	blockGas = 16_000_000
	lastKey  = "2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6"
)

// chain is the simulated backend and a client within the process.
type chain struct {
	sim    *simulated.Backend
	client *rpc.Client
	dir    string     // of the backend's socket
	mu     sync.Mutex // held while blocks are made
}

func start() (*chain, error) {
	ether := new(big.Int).Mul(big.NewInt(10_000), big.NewInt(1e18))
	alloc := types.GenesisAlloc{common.HexToAddress(factory): {Code: factoryCode, Balance: new(big.Int)}}
	for _, a := range accounts {
		alloc[common.HexToAddress(a)] = types.Account{Balance: ether}
	}
	dir, err := os.MkdirTemp("", "chain-")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "rpc")
	sim := simulated.NewBackend(alloc, func(n *node.Config, e *ethconfig.Config) { n.IPCPath, e.RPCTxFeeCap = socket, 0 }, simulated.WithBlockGasLimit(blockGas))
	sim.Commit() // without a block, the index of transactions is never complete
	client, err := rpc.Dial(socket)
	return &chain{sim: sim, client: client, dir: dir}, err
}

func (c *chain) close() error {
	c.client.Close()
	return errors.Join(c.sim.Close(), os.RemoveAll(c.dir))
}

func (c *chain) mineEvery(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.mine(1)
		case <-ctx.Done():
			return
		}
	}
}

func (c *chain) mine(blocks int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range blocks {
		c.sim.Commit()
	}
}

// reorg replaces the newest blocks by one more block than they are.
func (c *chain) reorg(ctx context.Context, depth uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	head, err := c.sim.Client().BlockNumber(ctx)
	if err != nil || depth == 0 || depth > head {
		return errors.Join(err, fmt.Errorf("no reorganisation of %d blocks at block %d", depth, head))
	}
	parent, err := c.sim.Client().HeaderByNumber(ctx, new(big.Int).SetUint64(head-depth))
	if err != nil {
		return err
	}
	if err := c.sim.Fork(parent.Hash()); err != nil {
		return err
	}
	for range depth + 1 {
		c.sim.Commit()
	}
	return nil
}

// raise makes blocks that one transaction of the last account fills, until the base fee is
// that many wei. Nothing else fits into them.
func (c *chain) raise(ctx context.Context, wei *big.Int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, err := crypto.HexToECDSA(lastKey)
	if err != nil {
		return err
	}
	for {
		head, err := c.sim.Client().HeaderByNumber(ctx, nil)
		if err != nil || head.BaseFee.Cmp(wei) >= 0 {
			return err
		}
		nonce, err := c.sim.Client().NonceAt(ctx, crypto.PubkeyToAddress(key.PublicKey), nil)
		if err != nil {
			return err
		}
		id := big.NewInt(1337)
		tx, err := types.SignNewTx(key, types.LatestSignerForChainID(id), &types.DynamicFeeTx{
			ChainID: id, Nonce: nonce, Gas: blockGas, GasTipCap: big.NewInt(1e11), GasFeeCap: big.NewInt(1e13), Data: []byte{0xfe}, // burns all gas
		})
		if err != nil {
			return err
		}
		if err := c.sim.Client().SendTransaction(ctx, tx); err != nil {
			return err
		}
		c.sim.Commit()
	}
}

type request struct {
	ID     json.RawMessage   `json:"id"`
	Method string            `json:"method"`
	Params []json.RawMessage `json:"params"`
}

// ServeHTTP answers one JSON-RPC request.
func (c *chain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&req); err != nil {
		http.Error(w, "no JSON-RPC request", http.StatusBadRequest)
		return
	}
	answer := map[string]any{"jsonrpc": "2.0", "id": req.ID}
	if result, err := c.answer(r.Context(), req); err != nil {
		answer["error"] = described(err)
	} else {
		answer["result"] = result
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(answer)
}

func (c *chain) answer(ctx context.Context, req request) (any, error) {
	switch req.Method {
	case "evm_mine":
		c.mine(1)
		return "0x0", nil
	case "anvil_reorg":
		var depth uint64
		if len(req.Params) < 1 || json.Unmarshal(req.Params[0], &depth) != nil {
			return nil, errors.New("anvil_reorg needs a depth")
		}
		return nil, c.reorg(ctx, depth)
	case "hardhat_setNextBlockBaseFeePerGas":
		var wei hexutil.Big
		if len(req.Params) < 1 || json.Unmarshal(req.Params[0], &wei) != nil {
			return nil, errors.New("hardhat_setNextBlockBaseFeePerGas needs an amount of wei")
		}
		return true, c.raise(ctx, wei.ToInt())
	}
	params := make([]any, len(req.Params))
	for i, p := range req.Params {
		params[i] = p
	}
	var result json.RawMessage
	err := c.client.CallContext(ctx, &result, req.Method, params...)
	return result, err
}

func described(err error) map[string]any {
	out := map[string]any{"code": -32000, "message": err.Error()}
	var coded rpc.Error
	if errors.As(err, &coded) {
		out["code"] = coded.ErrorCode()
	}
	return out
}
