package main

import (
	"bytes"
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
// takes this for a failure. The table counts these calls apart and does not time them. With
// -buffer it reads the body of a request first, and has no such fault.
func serveProxy(args []string, _ io.Reader, w io.Writer) error {
	flags := flag.NewFlagSet("proxy", flag.ContinueOnError)
	to := flags.String("to", "", "address of the upstream")
	listen := flags.String("listen", "127.0.0.1:0", "address")
	buffer := flags.Bool("buffer", false, "read the body of a request before it is sent on")
	if err := flags.Parse(args); err != nil {
		return err
	}
	target := &url.URL{Scheme: "http", Host: *to}
	l, err := announce(w, *listen)
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, DisableCompression: true},
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if *buffer {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		proxy.ServeHTTP(w, r)
	})
	return (&http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}).Serve(l)
}
