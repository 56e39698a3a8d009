package signal_test

import (
	"testing"

	"github.com/toolgate/toolgate/signal"
)

func TestInlineFile(t *testing.T) {
	tests := []struct {
		name, result, ref string
		data, media       string
		ok                bool
	}{
		{"an image", `{"content":[{"type":"image","data":"aGVsbG8=","mimeType":"image/png"}]}`, "/content/0", "hello", "image/png", true},
		{"the second of two", `{"content":[{"type":"text","text":"x"},{"type":"audio","data":"aGVs\nbG8="}]}`, "/content/1", "hello", "application/octet-stream", true},
		{"an empty audio", `{"content":[{"type":"audio","data":""}]}`, "/content/0", "", "application/octet-stream", true},
		{"a resource with text", `{"content":[{"type":"resource","resource":{"uri":"file:///a","text":"h\u00e9"}}]}`, "/content/0", "hé", "text/plain", true},
		{"a resource with a blob", `{"content":[{"type":"resource","resource":{"uri":"file:///a","mimeType":"x/y","blob":"aGVsbG8="}}]}`, "/content/0", "hello", "x/y", true},
		{"a file", `{"content":[{"type":"file","data":"aGVsbG8=","mimeType":"x/y"}]}`, "/content/0", "hello", "x/y", true},
		{"a file elsewhere", `{"content":[{"type":"file","uri":"file:///a"}]}`, "/content/0", "", "", false},
		{"a link", `{"content":[{"type":"resource_link","uri":"file:///a"}]}`, "/content/0", "", "", false},
		{"text", `{"content":[{"type":"text","text":"aGVsbG8="}]}`, "/content/0", "", "", false},
		{"structured content", `{"content":[],"structuredContent":{}}`, "/structuredContent", "", "", false},
		{"what is no base64", `{"content":[{"type":"image","data":"%%%"}]}`, "/content/0", "", "", false},
		{"a failure", `{"isError":true,"content":[{"type":"image","data":"aGVsbG8="}]}`, "/content/0", "", "", false},
		{"beyond the end", `{"content":[{"type":"image","data":"aGVsbG8="}]}`, "/content/1", "", "", false},
		{"another spelling of the place", `{"content":[{"type":"image","data":"aGVsbG8="}]}`, "/content/00", "", "", false},
		{"no result", `[]`, "/content/0", "", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data, media, ok := signal.InlineFile([]byte(tt.result), tt.ref)
			if string(data) != tt.data || media != tt.media || ok != tt.ok {
				t.Errorf("got %q, %q, %v", data, media, ok)
			}
		})
	}
}
