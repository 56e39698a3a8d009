package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

var linked = regexp.MustCompile(`"seq":\d+,(.*)"prev":"[0-9a-f]{64}","hash":"[0-9a-f]{64}"`)

// cmdForge does what somebody does who can write to the trail: it removes every record
// that contains a text, or replaces the text, and recomputes numbers, chain and HEAD.
func cmdForge(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: forge DIRECTORY TEXT [REPLACEMENT]")
	}
	chains, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "*", "HEAD"))
	ts.Check(err)
	forged := 0
	for _, head := range chains {
		prev, seq := strings.Repeat("0", 64), 0
		segments, err := filepath.Glob(filepath.Join(filepath.Dir(head), "*.jsonl"))
		ts.Check(err)
		for _, path := range segments {
			text, err := os.ReadFile(path)
			ts.Check(err)
			var kept bytes.Buffer
			for line := range bytes.Lines(text) {
				line := strings.TrimSuffix(string(line), "\n")
				if strings.Contains(line, args[1]) {
					forged++
					if len(args) == 2 {
						continue
					}
					line = strings.ReplaceAll(line, args[1], args[2])
				}
				seq++
				line = linked.ReplaceAllString(line, fmt.Sprintf(`"seq":%d,$1"prev":"%s"`, seq, prev))
				sum := sha256.Sum256([]byte(line))
				prev = hex.EncodeToString(sum[:])
				fmt.Fprintf(&kept, "%s,\"hash\":%q}\n", strings.TrimSuffix(line, "}"), prev)
			}
			ts.Check(os.WriteFile(path, kept.Bytes(), 0o600))
		}
		text, err := json.Marshal(map[string]any{"v": 1, "seq": seq, "hash": prev, "time": time.Now()})
		ts.Check(err)
		ts.Check(os.WriteFile(head, text, 0o600))
	}
	if forged == 0 {
		ts.Fatalf("no record contains %q", args[1])
	}
}
