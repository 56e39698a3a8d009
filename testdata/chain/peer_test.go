package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"flag"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/keystore"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
	"github.com/toolgate/toolgate/internal/evm"
)

// vectors are what go-ethereum writes; the tests of package evm read them.
const vectors = "../../internal/evm/testdata"

var update = flag.Bool("update", false, "write the vectors again")

// vector is a transaction with its key, and the bytes that go-ethereum makes from it.
type vector struct {
	Key, To, Tip, GasFee, Value, Data, Raw, Hash string
	ChainID, Nonce, Gas                          uint64
}

// made signs the transaction of v with go-ethereum.
func (v *vector) made(t testing.TB) {
	t.Helper()
	key, err := crypto.HexToECDSA(v.Key)
	if err != nil {
		t.Fatal(err)
	}
	number := func(text string) *big.Int { n, _ := new(big.Int).SetString(text, 10); return n }
	to := common.HexToAddress(v.To)
	tx, err := types.SignNewTx(key, types.LatestSignerForChainID(new(big.Int).SetUint64(v.ChainID)), &types.DynamicFeeTx{
		ChainID: new(big.Int).SetUint64(v.ChainID), Nonce: v.Nonce, GasTipCap: number(v.Tip), GasFeeCap: number(v.GasFee), Gas: v.Gas,
		To: &to, Value: number(v.Value), Data: common.FromHex(v.Data),
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := tx.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	v.Raw, v.Hash, v.To = hex.EncodeToString(raw), tx.Hash().Hex(), to.Hex()
}

// ours signs the transaction of v with package evm and compares it with go-ethereum's.
func (v *vector) ours(t testing.TB) {
	t.Helper()
	signer, err := evm.NewKey(v.Key)
	if err != nil {
		t.Fatal(err)
	}
	number := func(text string) *big.Int { n, _ := new(big.Int).SetString(text, 10); return n }
	to, err := evm.ParseAddress(v.To)
	if err != nil {
		t.Fatal(err)
	}
	tx := evm.Transaction{ChainID: v.ChainID, Nonce: v.Nonce, Tip: number(v.Tip), GasFee: number(v.GasFee), Gas: v.Gas, To: to, Value: number(v.Value), Data: common.FromHex(v.Data)}
	raw, hash, err := tx.Sign(t.Context(), signer)
	if err != nil || hex.EncodeToString(raw) != v.Raw || hash.String() != v.Hash {
		t.Errorf("%+v\nis %x, %s, %v", v, raw, hash, err)
	}
}

const key = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"

func TestTransactions(t *testing.T) {
	var all []*vector
	for i, size := range []int{0, 1, 4, 55, 56, 68, 255, 256, 300, 65_536} {
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(i + j)
		}
		n := uint64(1) << (6 * i)
		v := &vector{Key: key, To: accounts[i], Tip: "1", GasFee: new(big.Int).Lsh(big.NewInt(127), uint(i)).String(), Gas: 21_000 + n, ChainID: 1337 + n, Nonce: n - 1, Value: new(big.Int).Lsh(big.NewInt(1), uint(25*i)).String(), Data: hex.EncodeToString(data)}
		if i == 0 {
			v.Value, v.Tip = "0", "0"
		}
		v.made(t)
		v.ours(t)
		all = append(all, v)
	}
	if *update {
		text, err := json.MarshalIndent(all[:9], "", "  ")
		if err == nil {
			err = os.WriteFile(filepath.Join(vectors, "transactions.json"), append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzTransaction(f *testing.F) {
	f.Add(uint64(1337), uint64(0), uint64(21_000), []byte{1}, []byte{2}, []byte{3}, []byte{4}, []byte{5})
	f.Fuzz(func(t *testing.T, chain, nonce, gas uint64, tip, fee, value, to, data []byte) {
		if chain == 0 {
			t.Skip("no chain has the id 0")
		}
		number := func(b []byte) string { return new(big.Int).SetBytes(b[:min(len(b), 32)]).String() }
		v := &vector{Key: key, To: common.BytesToAddress(to).Hex(), Tip: number(tip), GasFee: number(fee), Value: number(value), Gas: gas, ChainID: chain, Nonce: nonce, Data: hex.EncodeToString(data)}
		v.made(t)
		v.ours(t)
	})
}

// TestKeys: addresses are go-ethereum's, for random keys.
func TestKeys(t *testing.T) {
	for range 200 {
		k, err := crypto.GenerateKey()
		if err != nil {
			t.Fatal(err)
		}
		signer, err := evm.NewKey(hex.EncodeToString(crypto.FromECDSA(k)))
		if want := crypto.PubkeyToAddress(k.PublicKey).Hex(); err != nil || signer.Address().String() != want {
			t.Errorf("%v, want %s: %v", signer, want, err)
		}
	}
}

// TestKeystores: a file that go-ethereum encrypts opens with its password only.
func TestKeystores(t *testing.T) {
	k, err := crypto.HexToECDSA(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := keystore.EncryptKey(&keystore.Key{Id: uuid.New(), Address: crypto.PubkeyToAddress(k.PublicKey), PrivateKey: k}, "correct horse", keystore.LightScryptN, keystore.LightScryptP)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key.json")
	if *update {
		path = filepath.Join(vectors, "keystore.json")
	}
	if err := os.WriteFile(path, append(bytes.TrimSpace(text), '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	signer, err := evm.OpenKeystore(path, "correct horse")
	if err != nil || signer.Address().String() != accounts[0] {
		t.Errorf("%v, %v", signer, err)
	}
	if _, err := evm.OpenKeystore(path, rand.Text()); err == nil {
		t.Error("opened with another password")
	}
}
