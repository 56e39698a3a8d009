package evm_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/apd/v3"

	"github.com/toolgate/toolgate/internal/evm"
	"github.com/toolgate/toolgate/internal/text"
)

const (
	key     = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
	account = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
)

func TestUnits(t *testing.T) {
	for _, c := range []struct {
		number   string
		decimals int
		want     string // "" for an error
	}{
		{"1", 18, "1000000000000000000"}, {"0.000000000000000001", 18, "1"}, {"1.000000000000000001", 18, "1000000000000000001"},
		{"0.10", 6, "100000"}, {"1e2", 6, "100000000"}, {"1E-6", 6, "1"}, {"1.50", 1, "15"}, {"100e-2", 0, "1"}, {"12", 0, "12"}, {"10.00", 0, "10"},
		{"9007199254740993", 0, "9007199254740993"},
		{new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1)).String(), 0, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1)).String()},
		{new(big.Int).Lsh(big.NewInt(1), 256).String(), 0, ""}, {"1e99", 18, ""},
		{"0.0000001", 6, ""}, {"1.5", 0, ""}, {"1e-7", 6, ""}, {"0", 6, ""}, {"0.0", 6, ""}, {"0e5", 6, ""}, {"", 6, ""}, {"-1", 6, ""}, {"+1", 6, ""}, {"01", 6, ""},
		{"1.", 6, ""}, {".5", 6, ""}, {"1,5", 6, ""}, {"1_0", 6, ""}, {"0x10", 6, ""}, {"NaN", 6, ""}, {" 1", 6, ""}, {"1\n", 6, ""}, {"1e999999999", 6, ""}, {"٣", 6, ""},
	} {
		got, err := text.Units(c.number, c.decimals)
		if (err == nil) != (c.want != "") || err == nil && got.String() != c.want {
			t.Errorf("%q with %d decimals: %v, %v; want %q", c.number, c.decimals, got, err, c.want)
		}
	}
}

// FuzzUnits: a number becomes units exactly, and back, or is refused.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{"1", "0.10", "1e2", "1e-18", "0.000", "123456789.987654321", "00", "1e99"} {
		f.Add(s, uint8(18))
	}
	f.Fuzz(func(t *testing.T, number string, decimals uint8) {
		places := int(decimals % 78)
		units, err := text.Units(number, places)
		if err != nil {
			return
		}
		want, _, err := apd.NewFromString(number)
		if err != nil {
			t.Fatalf("%q became %s", number, units)
		}
		decimal := text.Decimal(units, places)
		got, _, err := apd.NewFromString(decimal)
		if err != nil || got.Cmp(want) != 0 || units.Sign() <= 0 || units.BitLen() > 256 {
			t.Fatalf("%q with %d decimals became %s, which is %s: %v", number, places, units, decimal, err)
		}
		if again, err := text.Units(decimal, places); err != nil || again.Cmp(units) != 0 {
			t.Fatalf("%s became %v, %v", decimal, again, err)
		}
	})
}

// The examples of EIP-55.
func TestAddresses(t *testing.T) {
	for _, good := range []string{
		"0x52908400098527886E0F7030069857D2E4169EE7", "0x8617E340B3D01FA5F11F306F4090FD50E238070D", "0xde709f2102306220921060314715629080e2fb77",
		"0x27b1fdb04752bbc536007a920d24acb045561c26", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
		"0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB", "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
	} {
		if a, err := evm.ParseAddress(good); err != nil || a.String() != good {
			t.Errorf("%s: %s, %v", good, a, err)
		}
	}
	for _, bad := range []string{
		"", "0x", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAe", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAedd", "5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
		"0X5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeg", "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed",
		"0x5AAEB6053F3E94C9B9A09F33669435E7EF1BEAED", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeD", " 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
	} {
		if a, err := evm.ParseAddress(bad); err == nil {
			t.Errorf("%q is %s", bad, a)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add(account)
	f.Fuzz(func(t *testing.T, text string) {
		if a, err := evm.ParseAddress(text); err == nil && a.String() != text {
			t.Errorf("%q became %s", text, a)
		}
	})
}

// TestTransactionsAreThoseOfAPeer: transactions.json is what go-ethereum writes
// (testdata/chain).
func TestTransactionsAreThoseOfAPeer(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "transactions.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Key, To, Tip, GasFee, Value, Data, Raw, Hash string
		ChainID, Nonce, Gas                          uint64
	}
	if err := json.Unmarshal(text, &all); err != nil || len(all) < 9 {
		t.Fatalf("%d transactions, %v", len(all), err)
	}
	for i, v := range all {
		signer, err := evm.NewKey(v.Key)
		if err != nil {
			t.Fatal(err)
		}
		to, err := evm.ParseAddress(v.To)
		if err != nil {
			t.Fatal(err)
		}
		data, err := hex.DecodeString(v.Data)
		if err != nil {
			t.Fatal(err)
		}
		tx := evm.Transaction{ChainID: v.ChainID, Nonce: v.Nonce, Tip: number(t, v.Tip), GasFee: number(t, v.GasFee), Gas: v.Gas, To: to, Value: number(t, v.Value), Data: data}
		raw, hash, err := tx.Sign(t.Context(), signer)
		if err != nil || hex.EncodeToString(raw) != v.Raw || hash.String() != v.Hash {
			t.Errorf("transaction %d is %x, %s, %v; want %s", i, raw, hash, err, v.Raw)
		}
	}
}

func number(t *testing.T, text string) *big.Int {
	t.Helper()
	n, ok := new(big.Int).SetString(text, 10)
	if !ok {
		t.Fatal(text)
	}
	return n
}

func TestKeystore(t *testing.T) {
	path := filepath.Join("testdata", "keystore.json")
	signer, err := evm.OpenKeystore(path, "correct horse")
	if err != nil || signer.Address().String() != account {
		t.Fatalf("%v, %v", signer, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"version":    {`"version":3`, `"version":1`},
		"cipher":     {"aes-128-ctr", "aes-128-cbc"},
		"kdf":        {`"kdf":"scrypt"`, `"kdf":"none"`},
		"work":       {`"n":4096`, `"n":1073741824`},
		"no work":    {`"n":4096`, `"n":0`},
		"short key":  {`"dklen":32`, `"dklen":16`},
		"other text": {`"ciphertext":"`, `"ciphertext":"00`},
		"no object":  {`{`, `[`},
	} {
		changed := strings.Replace(string(text), change[0], change[1], 1)
		if changed == string(text) {
			t.Fatalf("%s: nothing to change in %s", name, text)
		}
		file := filepath.Join(t.TempDir(), "key.json")
		if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := evm.OpenKeystore(file, "correct horse"); err == nil || strings.Contains(err.Error(), "correct horse") {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if s, err := evm.OpenKeystore(path, "correct horses"); err == nil || !strings.Contains(err.Error(), "the password does not open it") || strings.Contains(err.Error(), "horses") {
		t.Errorf("%v, %v", s, err)
	}
}

// The key store that the definition of Web3 Secret Storage gives as its example of pbkdf2.
func TestKeystoreOfTheDefinition(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key.json")
	const text = `{"crypto":{"cipher":"aes-128-ctr","cipherparams":{"iv":"6087dab2f9fdbbfaddc31a909735c1e6"},"ciphertext":"5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46","kdf":"pbkdf2","kdfparams":{"c":262144,"dklen":32,"prf":"hmac-sha256","salt":"ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd"},"mac":"517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2"},"id":"3198bc9c-6672-5ab3-d995-4942343ae5b6","version":3}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want, err := evm.NewKey("7a28b5ba57c53603b0b07b56bba752f7784bf506fa95edc395f5cf6c7514fe9d")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := evm.OpenKeystore(file, "testpassword"); err != nil || got.Address() != want.Address() {
		t.Errorf("%v, %v", got, err)
	}
}

// TestKeysStayHidden: no form of a key writes it, and no error quotes it.
func TestKeysStayHidden(t *testing.T) {
	signer, err := evm.NewKey("0x" + key + "\n")
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(signer)
	if err != nil {
		t.Fatal(err)
	}
	texts := fmt.Sprintf("%v %+v %#v %s %x %d %q %s", signer, signer, signer, signer, signer, signer, signer, encoded)
	for _, bad := range []string{key[1:], key + "00", strings.Repeat("f", 64), strings.Repeat("0", 64), "secret " + key[7:]} {
		if _, err := evm.NewKey(bad); err == nil {
			t.Errorf("a key of %d digits is accepted", len(bad))
		} else {
			texts += err.Error()
		}
	}
	if strings.Contains(texts, key[:16]) || strings.Contains(texts, key[8:24]) || strings.Contains(texts, "secret") {
		t.Errorf("the key is in %s", texts)
	}
}

// wrong signs with another key than that of its address.
type wrong struct{ evm.Signer }

func (w wrong) Sign(context.Context, []byte) (evm.Signature, error) {
	other, err := evm.NewKey(strings.Repeat("1", 64))
	if err != nil {
		return evm.Signature{}, err
	}
	return other.Sign(context.Background(), []byte("payload"))
}

func TestAForeignSignatureIsRefused(t *testing.T) {
	signer, err := evm.NewKey(key)
	if err != nil {
		t.Fatal(err)
	}
	tx := evm.Transaction{ChainID: 1337, Tip: new(big.Int), GasFee: new(big.Int), Value: new(big.Int)}
	if raw, _, err := tx.Sign(t.Context(), wrong{signer}); err == nil {
		t.Errorf("signed: %x", raw)
	}
}

func TestCommandSigner(t *testing.T) {
	signer, err := evm.NewKey(key)
	if err != nil {
		t.Fatal(err)
	}
	tx := evm.Transaction{ChainID: 1337, Tip: big.NewInt(1), GasFee: big.NewInt(2), Gas: 21_000, Value: big.NewInt(3)}
	signature, err := signer.Sign(t.Context(), tx.Payload())
	if err != nil {
		t.Fatal(err)
	}
	want, _, err := tx.Sign(t.Context(), signer)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := func(lines string) evm.Signer {
		file := filepath.Join(dir, "signer")
		if err := os.WriteFile(file, []byte("read -r payload; echo \"$payload\" > "+dir+"/payload\n"+lines), 0o600); err != nil {
			t.Fatal(err)
		}
		return evm.NewCommand([]string{"/bin/sh", file}, signer.Address())
	}
	got, _, err := tx.Sign(t.Context(), script(fmt.Sprintf("echo 0x%x\n", signature[:])))
	if err != nil || hex.EncodeToString(got) != hex.EncodeToString(want) {
		t.Errorf("%x, %v", got, err)
	}
	if payload, err := os.ReadFile(filepath.Join(dir, "payload")); err != nil || strings.TrimSpace(string(payload)) != fmt.Sprintf("0x%x", tx.Payload()) {
		t.Errorf("payload %s, %v", payload, err)
	}
	for _, lines := range []string{"exit 1\n", "echo nonsense\n", "echo 0x00\n", fmt.Sprintf("echo %0130d\n", 0), "echo " + strings.Repeat("zz", 65) + "\n"} {
		if raw, _, err := tx.Sign(t.Context(), script(lines)); err == nil {
			t.Errorf("%s signed %x", lines, raw)
		}
	}
}

// Whatever a node answers, an error does not quote the URL of the node, and quotes of the
// answer only a short, visible message.
func TestNodeAnswers(t *testing.T) {
	for answer, want := range map[string]string{
		`{"result":"0x539"}`: "", `{"result":"1337"}`: "cannot be read", `{"result":null}`: "cannot be read", `{}`: "cannot be read", `<html>`: "cannot be read", ``: "cannot be read",
		`{"result":"0x"}`: "cannot be read", `{"result":"0x-1"}`: "cannot be read", `{"result":"0x1ffffffffffffffff"}`: "cannot be read",
		`{"error":{"code":-32000,"message":"no\u202e` + strings.Repeat("x", 500) + `"}}`: "<U+202E>",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
		id, err := evm.NewNode(s.URL + "/v3/secret").ChainID(t.Context())
		s.Close()
		if want == "" && (err != nil || id != 1337) || want != "" && (err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300 || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %d, %v; want %q", answer, id, err, want)
		}
	}
	s := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/", http.StatusTemporaryRedirect))
	defer s.Close()
	if _, err := evm.NewNode(s.URL).ChainID(t.Context()); err == nil || !strings.Contains(err.Error(), "status 307") {
		t.Errorf("a redirect: %v", err)
	}
	if _, err := evm.NewNode("http://127.0.0.1:1/secret").ChainID(t.Context()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
