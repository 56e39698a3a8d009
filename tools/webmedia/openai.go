package webmedia

import (
	"context"
	"encoding/json"
	"strings"
)

// openai is the images API of OpenAI. GPT image models return base64; dall-e-2, dall-e-3
// and copies of the API may return an address.
//
// Source: https://platform.openai.com/docs/api-reference/images/create
var openai = provider{
	base: "https://api.openai.com", auth: "Bearer ",
	shapes: map[string]string{"1:1": "1024x1024", "4:3": "1536x1024", "16:9": "1536x1024", "3:4": "1024x1536", "9:16": "1024x1536"},
	ask: func(j job) (request, error) {
		body := map[string]any{"model": j.model.ID, "prompt": j.Prompt, "n": 1, "size": j.shape}
		if strings.HasPrefix(j.model.ID, "gpt-image") {
			body["output_format"] = j.Format
		}
		text, err := json.Marshal(body)
		return request{path: "/v1/images/generations", contentType: "application/json", body: text}, err
	},
	finish: func(ctx context.Context, e *Engine, answer []byte) ([]byte, error) {
		var a struct {
			Data []struct {
				Base64 []byte `json:"b64_json"`
				URL    string
			}
		}
		if err := json.Unmarshal(answer, &a); err != nil || len(a.Data) == 0 {
			return nil, e.unreadable()
		}
		if first := a.Data[0]; first.URL != "" && len(first.Base64) == 0 {
			return e.fetch(ctx, first.URL)
		}
		return a.Data[0].Base64, nil
	},
	reason: func(answer []byte) string {
		var a struct{ Error struct{ Code string } }
		_ = json.Unmarshal(answer, &a) // no code when it is none of the API's answers
		return a.Error.Code
	},
}
