package program

import (
	"context"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// Chromium starts a browser with an empty profile, for chromedp, and stops it with
// the test. Package parts says when the test skips.
func Chromium(t testing.TB) context.Context {
	t.Helper()
	path := parts.Need(t, "chromium")
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.Headless,
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true))
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("starting chromium: %v", err)
	}
	return ctx
}
