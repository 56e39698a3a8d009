// Package valkey runs scripts and keeps texts and hashes on the Valkey or Redis server that
// replicas share.
package valkey

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// longest bounds the opening of a connection and one answer; a shorter context bounds
// one request.
const longest = time.Second

// Client is a pool of connections to one server. It is safe for concurrent use.
type Client struct {
	pool    *redis.Client
	scripts sync.Map // source text -> *redis.Script
}

// Open returns a Client for a redis:// or rediss:// URL, and connects with the first request. The
// certificate of a rediss server must be of one of roots; nil = the system's. Errors of a
// Client have no password.
func Open(url string, roots *x509.CertPool) (*Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("invalid URL of a Valkey or Redis server") // err may quote the password
	}
	if o.TLSConfig != nil {
		host, _, _ := net.SplitHostPort(o.Addr) // ParseURL has given it a port
		o.TLSConfig = &tls.Config{ServerName: host, RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	o.Protocol, o.DisableIdentity = 2, true
	o.MaxRetries, o.DialerRetries = -1, 1 // a script that may have run is not run again
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = longest, longest, longest, longest
	o.ContextTimeoutEnabled = true
	redis.SetLogger(silent{})
	return &Client{pool: redis.NewClient(o)}, nil
}

// silent keeps go-redis from writing to stderr: its callers report the errors that they get.
type silent struct{}

// Printf implements the logger of go-redis.
func (silent) Printf(context.Context, string, ...any) {}

// script returns the Lua script with a source text, of which a program has few.
func (c *Client) script(source string) *redis.Script {
	s, ok := c.scripts.Load(source)
	if !ok {
		s, _ = c.scripts.LoadOrStore(source, redis.NewScript(source))
	}
	return s.(*redis.Script)
}

// Run runs the Lua script source, whose answer is a list of whole numbers, once. After an error the
// script may have run nevertheless, but for one that the server answered.
func (c *Client) Run(ctx context.Context, source string, keys []string, args ...any) ([]int64, error) {
	return c.script(source).Run(ctx, c.pool, keys, args...).Int64Slice()
}

// Text is Run for a script whose answer is a text.
func (c *Client) Text(ctx context.Context, source string, keys []string, args ...any) (string, error) {
	return c.script(source).Run(ctx, c.pool, keys, args...).Text()
}

// Fields returns the fields of the hash at key. It returns an empty map when there is no hash.
func (c *Client) Fields(ctx context.Context, key string) (map[string]string, error) {
	return c.pool.HGetAll(ctx, key).Result()
}

// A Change sets a field of the hash at Key to a text, and the hash to expire after Life. Without a
// Text it removes the field, and without a Field all of the hash.
type Change struct {
	Key, Field, Text string
	Life             time.Duration
}

// Change makes changes in their order, in one trip. After an error some may have been made.
func (c *Client) Change(ctx context.Context, changes []Change) error {
	_, err := c.pool.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, change := range changes {
			switch {
			case change.Field == "":
				p.Del(ctx, change.Key)
			case change.Text == "":
				p.HDel(ctx, change.Key, change.Field)
			default:
				p.HSet(ctx, change.Key, change.Field, change.Text)
				p.PExpire(ctx, change.Key, change.Life)
			}
		}
		return nil
	})
	return err
}

// Set keeps a text at key for a time.
func (c *Client) Set(ctx context.Context, key, text string, life time.Duration) error {
	return c.pool.Set(ctx, key, text, life).Err()
}

// Delete removes the text at key.
func (c *Client) Delete(ctx context.Context, key string) error { return c.pool.Del(ctx, key).Err() }

// Close closes the connections.
func (c *Client) Close() error { return c.pool.Close() }
