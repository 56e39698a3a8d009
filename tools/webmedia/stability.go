package webmedia

import (
	"bytes"
	"context"
	"encoding/json"
	"mime/multipart"
	"strings"
)

// stability is the Stable Image API of Stability AI. The models core and ultra have
// endpoints of their own, and sd3.5-large and the like share sd3. It has no 4:3.
//
// Source: https://platform.stability.ai/docs/api-reference
var stability = provider{
	base: "https://api.stability.ai", auth: "Bearer ",
	shapes: map[string]string{"1:1": "1:1", "4:3": "5:4", "16:9": "16:9", "3:4": "4:5", "9:16": "9:16"},
	ask: func(j job) (request, error) {
		fields, endpoint := [][2]string{{"prompt", j.Prompt}, {"aspect_ratio", j.shape}, {"output_format", j.Format}}, j.model.ID
		if strings.HasPrefix(j.model.ID, "sd3") {
			fields, endpoint = append(fields, [2]string{"model", j.model.ID}), "sd3"
		}
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		for _, f := range fields {
			if err := form.WriteField(f[0], f[1]); err != nil {
				return request{}, err
			}
		}
		err := form.Close()
		return request{path: "/v2beta/stable-image/generate/" + endpoint, contentType: form.FormDataContentType(), body: body.Bytes()}, err
	},
	finish: func(_ context.Context, e *Engine, answer []byte) ([]byte, error) {
		var a struct {
			Image  []byte
			Finish string `json:"finish_reason"`
		}
		switch err := json.Unmarshal(answer, &a); {
		case err != nil:
			return nil, e.unreadable()
		case a.Finish == "CONTENT_FILTERED":
			return nil, e.declines("content_filtered")
		}
		return a.Image, nil
	},
	reason: func(answer []byte) string {
		var a struct{ Name string }
		_ = json.Unmarshal(answer, &a) // no name when it is none of the API's answers
		return a.Name
	},
}
