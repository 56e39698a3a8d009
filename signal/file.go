package signal

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// inline is what a content block holds itself, not by reference.
type inline struct {
	data  []byte
	media string
	uri   string // of an embedded resource
}

// inline finds the bytes of an image, an audio, an embedded resource or a
// file, seed 002's FileContent.
func (b *block) inline(kind string) (in inline, ok bool) {
	holder, member := b, blockData
	switch kind {
	case "image", "audio", "file":
	case "resource":
		holder = &block{}
		if holder.Members, ok = jsonrpc.Fields(b.Members[blockResource], blockMembers...); !ok {
			return in, false
		}
		in.uri, _ = jsonrpc.Text(holder.Members[blockURI])
		if member = blockBlob; jsontext.Value(holder.Members[blockText]).Kind() == '"' {
			member, in.media = blockText, "text/plain"
		}
	default:
		return in, false
	}
	in.media = holder.mediaOr(cmp.Or(in.media, anyBytes))
	text, ok := jsonrpc.Text(holder.Members[member])
	if in.data = []byte(text); ok && member != blockText {
		var err error
		in.data, err = base64.StdEncoding.DecodeString(text)
		ok = err == nil
	}
	return in, ok
}

const anyBytes = "application/octet-stream"

func (b *block) mediaOr(fallback string) string {
	media, _ := jsonrpc.Text(b.Members[blockMIME])
	return cmp.Or(media, fallback)
}

// file maps a block of content that is a file: what it holds by its SHA-256,
// what it points at by uri or path.
func (b *block) file(kind string) (payload, bool) {
	var f fileBody
	if in, ok := b.inline(kind); ok {
		sum, size := sha256.Sum256(in.data), len(in.data)
		f = fileBody{ID: "sha256:" + hex.EncodeToString(sum[:]), Type: in.media, URI: in.uri, Size: &size}
		return payload{kind: File, body: encode(f)}, true
	}
	if kind != "resource_link" && (kind != "file" || b.Members[blockData] != nil) {
		return payload{}, false
	}
	f.Type = b.mediaOr(anyBytes)
	if f.ID, _ = jsonrpc.Text(b.Members[blockURI]); f.ID == "" && kind == "file" {
		f.ID, _ = jsonrpc.Text(b.Members[blockPath])
		f.Path = &f.ID
	}
	return payload{kind: File, body: encode(f)}, f.ID != ""
}

// InlineFile gives the bytes behind a FILE signal: result is the MCP tool
// result that FromToolResult has split, ref what it gave for the signal. The
// media type is the signal's file_type. ok is false where the result does not
// hold the bytes itself, as with links, and where ref leads to no file.
func InlineFile(result json.RawMessage, ref string) (data []byte, mediaType string, ok bool) {
	r, err := parseToolResult(result, false)
	if err != nil || r.isError {
		return nil, "", false
	}
	for i := range r.blocks {
		b := (*block)(&r.blocks[i])
		if ref == "/content/"+strconv.Itoa(i) {
			kind, _ := jsonrpc.Text(b.Members[blockType])
			if in, ok := b.inline(kind); ok {
				return in.data, in.media, true
			}
		}
	}
	return nil, "", false
}
