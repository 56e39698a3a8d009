package chain

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolgate/toolgate/internal/evm"
)

// Options are the settings of a Wallet. The tags are those of docs/schemas/backends.json.
type Options struct {
	Provider string `json:"provider"` // "evm"; "paper" is package wallet's
	URL      string `json:"rpc_url"`  // of the node; may hold a key
	ChainID  uint64 `json:"chain_id"` // the chain on which everything is paid; required
	Mainnet  bool   `json:"mainnet"`  // chains that are not known as test chains are refused without it

	Symbol     string            `json:"symbol"`     // of the chain's own asset; "" is ETH
	Tokens     map[string]Token  `json:"tokens"`     // by symbol
	Recipients map[string]string `json:"recipients"` // the address book: addresses by name
	Signer     Signer            `json:"signer"`     // required

	MaxFee        string        `json:"max_fee"`       // most that one payment may cost in fees, in the chain's own asset; "" is 0.01
	Confirmations uint64        `json:"confirmations"` // blocks, its own included, until a payment is confirmed; 0 is 3
	Wait          time.Duration `json:"wait"`          // how long a call waits for that; 0 is 30 s
}

// Token is an ERC-20 contract.
type Token struct {
	Address  string `json:"address"`
	Decimals int    `json:"decimals"`
}

// Signer is where the key is: one of Keystore, PrivateKey and Command.
type Signer struct {
	Keystore   string   `json:"keystore"` // path of an encrypted file, opened with Password
	Password   string   `json:"password"`
	PrivateKey string   `json:"private_key"`
	Command    []string `json:"command"` // signs for Address
	Address    string   `json:"address"`
}

// The defaults of Options.
const (
	nativeSymbol         = "ETH"
	nativeDecimals       = 18
	defaultMaxFee        = "0.01"
	defaultConfirmations = 3
	defaultWait          = 30 * time.Second
)

// testChains are chains whose assets are worth nothing: local ones, and the public test
// networks of Ethereum, Base, Optimism, Arbitrum, Polygon, Avalanche, BNB Chain, Gnosis,
// Linea and Scroll. Any other chain counts as one of real money.
var testChains = []uint64{
	1337, 31337, 11155111, 17000, 560048, 84532, 11155420, 421614, 80002, 43113, 97, 10200, 59141, 534351,
}

// ErrMainnet is in the chain of Open's error for a chain of real money without the switch
// for it.
var ErrMainnet = errors.New("not a known test chain")

// asset is what can be paid: the chain's own, or a token.
type asset struct {
	symbol   string
	decimals int
	token    *evm.Address // nil for the chain's own
}

// check refuses settings with which nothing may be paid.
func (o *Options) check() error {
	switch {
	case o.ChainID == 0:
		return errors.New("chain_id is missing")
	case !o.Mainnet && !slices.Contains(testChains, o.ChainID):
		return fmt.Errorf("chain %d: %w\nhint: set \"mainnet\": true to pay with real money", o.ChainID, ErrMainnet)
	}
	return nil
}

// Decimals returns the digits after the point of each asset that can be paid, by symbol.
func (o *Options) Decimals() map[string]int {
	all := map[string]int{cmp.Or(o.Symbol, nativeSymbol): nativeDecimals}
	for symbol, t := range o.Tokens {
		all[symbol] = t.Decimals
	}
	return all
}

// assets returns what can be paid, the chain's own first.
func (o *Options) assets(native string) ([]asset, error) {
	all := []asset{{native, nativeDecimals, nil}}
	for symbol, t := range o.Tokens {
		address, err := evm.ParseAddress(t.Address)
		if err != nil {
			return nil, fmt.Errorf("token %s: %w", symbol, err)
		}
		if symbol == native {
			return nil, fmt.Errorf("token %s has the symbol of the chain's own asset", symbol)
		}
		all = append(all, asset{symbol, t.Decimals, &address})
	}
	slices.SortFunc(all[1:], func(a, b asset) int { return slices.Compare([]byte(a.symbol), []byte(b.symbol)) })
	return all, nil
}

func (o *Options) book() (map[string]evm.Address, error) {
	book := map[string]evm.Address{}
	for name, text := range o.Recipients {
		address, err := evm.ParseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("recipient %s: %w", name, err)
		}
		book[name] = address
	}
	return book, nil
}

// open returns the signer. Exactly one kind must be set.
func (s *Signer) open() (evm.Signer, error) {
	switch {
	case s.Keystore != "" && s.PrivateKey == "" && s.Command == nil:
		return evm.OpenKeystore(s.Keystore, s.Password)
	case s.PrivateKey != "" && s.Keystore == "" && s.Command == nil:
		return evm.NewKey(s.PrivateKey)
	case len(s.Command) > 0 && s.Keystore == "" && s.PrivateKey == "":
		account, err := evm.ParseAddress(s.Address)
		if err != nil {
			return nil, fmt.Errorf("account of the command: %w", err)
		}
		return evm.NewCommand(s.Command, account), nil
	}
	return nil, errors.New("signer needs one of keystore, private_key and command")
}
