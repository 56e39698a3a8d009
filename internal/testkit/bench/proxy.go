package main

import (
	"flag"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// serveProxy runs the yardstick: httputil.ReverseProxy as it is, with a pool of idle
// connections that never runs short.
//
// It loses a few large results: its server half closes the request's body when the
// answer begins, and where its client half has not yet seen the end of that body, it
// takes this for a failure. The table counts these calls apart and does not time them.
func serveProxy(args []string, _ io.Reader, w io.Writer) error {
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	to := flags.String("to", "", "address of the upstream")
	if err := flags.Parse(args); err != nil {
		return err
	}
	target := &url.URL{Scheme: "http", Host: *to}
	l, err := announce(w)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: &httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport: &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, DisableCompression: true},
		},
		ReadHeaderTimeout: time.Minute,
	}
	return server.Serve(l)
}
