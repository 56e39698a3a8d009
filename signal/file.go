package signal

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

const anyBytes = "application/octet-stream"

// inline is what a content block holds itself, not by reference.
type inline struct {
	lexeme json.RawMessage // a JSON string: text, or bytes in base64
	base64 bool
	mime   string
	uri    string // of an embedded resource
}

// inline finds the bytes of an image, an audio, an embedded resource or a
// file, seed 002's FileContent.
func (b *block) inline(kind string) (in inline, ok bool) {
	switch kind {
	case "image", "audio", "file":
		in = inline{b.members[blockData], true, b.mimeOr(anyBytes), ""}
	case "resource":
		r := block{raw: b.members[blockResource]}
		if r.members, ok = jsonrpc.Fields(r.raw, blockMembers...); !ok {
			return in, false
		}
		uri, _ := jsonrpc.Text(r.members[blockURI])
		if isText(r.members[blockText]) {
			return inline{r.members[blockText], false, r.mimeOr("text/plain"), uri}, true
		}
		in = inline{r.members[blockBlob], true, r.mimeOr(anyBytes), uri}
	}
	return in, isText(in.lexeme)
}

func (b *block) mimeOr(fallback string) string {
	mime, _ := jsonrpc.Text(b.members[blockMIME])
	return cmp.Or(mime, fallback)
}

// reader returns the bytes.
func (in inline) reader() io.Reader {
	text, _ := jsonrpc.Text(in.lexeme)
	if in.base64 {
		return base64.NewDecoder(base64.StdEncoding, strings.NewReader(text))
	}
	return strings.NewReader(text)
}

// file maps a block of content that is a file: what it holds by its SHA-256,
// what it points at by uri or path.
func (b *block) file(kind string) (payload, bool) {
	var f fileBody
	if in, ok := b.inline(kind); ok {
		hash := sha256.New()
		n, err := io.Copy(hash, in.reader())
		size := int(n)
		f = fileBody{ID: "sha256:" + hex.EncodeToString(hash.Sum(nil)), Type: in.mime, URI: in.uri, Size: &size}
		return payload{kind: File, body: encode(f)}, err == nil
	}
	if kind != "resource_link" && kind != "file" {
		return payload{}, false
	}
	f.Type = b.mimeOr(anyBytes)
	if f.ID, _ = jsonrpc.Text(b.members[blockURI]); f.ID == "" && kind == "file" {
		f.ID, _ = jsonrpc.Text(b.members[blockPath])
		f.Path = &f.ID
	}
	return payload{kind: File, body: encode(f)}, f.ID != ""
}

// InlineFile gives the bytes behind a FILE signal: result is the MCP tool
// result that FromToolResult has split, ref what it gave for the signal. The
// media type is the signal's file_type. ok is false where the result does not
// hold the bytes itself, as with links, and where ref leads to no file.
func InlineFile(result json.RawMessage, ref string) (data []byte, mediaType string, ok bool) {
	r, err := parseToolResult(result)
	if err != nil || r.isError {
		return nil, "", false
	}
	for i := range r.blocks {
		if ref == "/content/"+strconv.Itoa(i) {
			return r.blocks[i].bytes()
		}
	}
	return nil, "", false
}

func (b *block) bytes() (data []byte, mediaType string, ok bool) {
	kind, _ := jsonrpc.Text(b.members[blockType])
	in, ok := b.inline(kind)
	if !ok {
		return nil, "", false
	}
	data, err := io.ReadAll(in.reader())
	if err != nil {
		return nil, "", false
	}
	return data, in.mime, true
}
