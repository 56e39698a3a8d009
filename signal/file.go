package signal

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"strconv"
	"strings"
)

const anyBytes = "application/octet-stream"

// inline is what a content block holds itself, not by reference.
type inline struct {
	lexeme string // a JSON string: text, or bytes in base64
	base64 bool
	mime   string
	uri    string // of an embedded resource
}

// inline finds the bytes of an image, an audio, an embedded resource or a
// file, seed 002's FileContent.
func (b *block) inline(kind string) (in inline, ok bool) {
	switch kind {
	case "image", "audio", "file":
		in = inline{b.data, true, b.mimeOr(anyBytes), ""}
	case "resource":
		if !strings.HasPrefix(b.resource, "{") {
			return in, false
		}
		p := newScanner(b.resource)
		r := readBlock(p)
		if p.bad {
			return in, false
		}
		uri, _ := unquote(r.uri)
		if strings.HasPrefix(r.text, `"`) {
			return inline{r.text, false, r.mimeOr("text/plain"), uri}, true
		}
		in = inline{r.inlineBlob, true, r.mimeOr(anyBytes), uri}
	}
	return in, strings.HasPrefix(in.lexeme, `"`)
}

func (b *block) mimeOr(fallback string) string {
	if mime, ok := unquote(b.mime); ok && mime != "" {
		return mime
	}
	return fallback
}

// reader gives the bytes, false for a string that cannot be decoded.
func (in inline) reader() (io.Reader, bool) {
	text, ok := unquote(in.lexeme)
	if in.base64 {
		return base64.NewDecoder(base64.StdEncoding, strings.NewReader(text)), ok
	}
	return strings.NewReader(text), ok
}

// hash names the bytes without holding them decoded.
func (in inline) hash() (id string, size int, ok bool) {
	r, ok := in.reader()
	if !ok {
		return "", 0, false
	}
	h := sha256.New()
	n, err := io.Copy(h, r)
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), int(n), err == nil
}

// file maps a block of content that is a file: what it holds by its SHA-256,
// what it points at by uri or path.
func (b *block) file(kind string) (payload, bool) {
	if in, ok := b.inline(kind); ok {
		if id, size, ok := in.hash(); ok {
			return filePayload(id, in.mime, "", in.uri, size), true
		}
		return payload{}, false
	}
	if kind != "resource_link" && kind != "file" {
		return payload{}, false
	}
	if uri, ok := unquote(b.uri); ok && uri != "" {
		return filePayload(uri, b.mimeOr(anyBytes), "", "", -1), true
	}
	if kind == "file" {
		raw, _ := member(b.raw, "path")
		if path, ok := unquote(raw); ok && path != "" {
			return filePayload(path, b.mimeOr(anyBytes), path, "", -1), true
		}
	}
	return payload{}, false
}

func filePayload(id, mime, path, uri string, size int) payload {
	return payload{kind: File, body: fileBody(id, mime, path, uri, size)}
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
	kind, _ := unquote(b.kind)
	in, ok := b.inline(kind)
	if !ok {
		return nil, "", false
	}
	src, ok := in.reader()
	if !ok {
		return nil, "", false
	}
	data, err := io.ReadAll(src)
	if err != nil {
		return nil, "", false
	}
	return data, in.mime, true
}
