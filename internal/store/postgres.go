package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

//go:embed postgres/*.sql
var embeddedPostgres embed.FS

// PostgresMigrations returns the migrations for [OpenPostgres], in the form of
// [Migrations]. They lead to the same tables and columns.
func PostgresMigrations() fs.FS { return Folder(embeddedPostgres, "postgres") }

// ErrOutcome is in the chain of Update's error when the connection was lost during the
// commit: whether the change was made is unknown.
var ErrOutcome = errors.New("whether the change was stored is unknown")

// connectTimeout bounds one connection attempt when the URL does not.
const connectTimeout = 5 * time.Second

// postgres is the engine of OpenPostgres. The isolation of its changes is READ COMMITTED,
// where every statement sees what was committed before the statement began: those after
// [DB.Lock] see all that earlier holders of the lock wrote.
var postgres = engine{
	remote:    true,
	oldest:    "SELECT coalesce(max(oldest), 0) FROM schema_version",
	setOldest: "UPDATE schema_version SET oldest = %d",
	view:      sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
}

// sessionSettings make the server end what a frozen or unreachable process has begun, so that
// others wait for its locks for at most four seconds. What the URL of the database sets wins.
var sessionSettings = map[string]string{
	"idle_in_transaction_session_timeout": "4s",
	"lock_timeout":                        "10s", // longer: who waits for a frozen process gets the lock
	"statement_timeout":                   "15s",
	"tcp_keepalives_idle":                 "10", // seconds
	"tcp_keepalives_interval":             "5",
	"tcp_keepalives_count":                "3",
	"tcp_user_timeout":                    "15s",
}

const postgresHeader = "CREATE TABLE schema_version (version BIGINT PRIMARY KEY, name TEXT NOT NULL, oldest BIGINT NOT NULL DEFAULT 0)"

// OpenPostgres opens the database at a postgres:// URL, whose form is that of libpq, and
// applies the migrations that the database lacks. Errors do not contain the URL's
// password. A migration that older versions cannot go on with is applied only while no
// process uses the database (ErrInUse).
func OpenPostgres(ctx context.Context, address string, migrations fs.FS) (*DB, error) {
	steps, err := readMigrations(migrations)
	if err != nil {
		return nil, err
	}
	db, err := connectPostgres(address)
	if err != nil {
		return nil, err
	}
	if err = db.suits(ctx); err == nil {
		err = db.migrate(ctx, steps)
	}
	if err != nil {
		return nil, errors.Join(explainPostgres(address, err), db.Close())
	}
	return db, nil
}

// CheckPostgres returns why the database at a URL cannot be used, and changes nothing.
func CheckPostgres(ctx context.Context, address string) error {
	db, err := connectPostgres(address)
	if err != nil {
		return err
	}
	if err = db.suits(ctx); err != nil {
		err = explainPostgres(address, err)
	}
	return errors.Join(err, db.Close())
}

// Redact returns the URL of a database without its secrets.
func Redact(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "postgres://…" // the password may be anywhere in it
	}
	shown := url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host, Path: u.Path}
	return shown.Redacted()
}

// parsePostgres reads the URL of a database, with what the environment, and files that the
// URL names, add.
func parsePostgres(address string) (*pgx.ConnConfig, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || u.Host == "" && u.Query().Get("host") == "" {
		return nil, errors.New("opening state database: the address is not a URL of the form postgres://USER:PASSWORD@HOST/DATABASE") // the cause may contain the password
	}
	config, err := pgx.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("opening state database %s: %w", Redact(address), err)
	}
	return config, nil
}

// PlainHosts returns the hosts that the URL of a database lets be reached without TLS;
// sockets of this machine are not among them.
func PlainHosts(address string) (hosts []string, err error) {
	config, err := parsePostgres(address)
	if err != nil {
		return nil, err
	}
	for _, c := range append([]*pgconn.FallbackConfig{{Host: config.Host, TLSConfig: config.TLSConfig}}, config.Fallbacks...) {
		if c.TLSConfig == nil && !strings.HasPrefix(c.Host, "/") && !slices.Contains(hosts, c.Host) {
			hosts = append(hosts, c.Host)
		}
	}
	return hosts, nil
}

// connectPostgres makes the pools; nothing connects yet.
func connectPostgres(address string) (*DB, error) {
	config, err := parsePostgres(address)
	if err != nil {
		return nil, err
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	config.RuntimeParams["application_name"] = "toolgate"
	config.DialFunc = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}).DialContext
	// Poolers refuse startup parameters that they do not know.
	set := ""
	for name, value := range sessionSettings {
		if _, own := config.RuntimeParams[name]; !own {
			set += "SET " + name + " = '" + value + "';"
		}
	}
	config.AfterConnect = executing(set)
	reading := config.Copy()
	// As a startup parameter, it would make every server look like a standby to target_session_attrs.
	reading.AfterConnect = executing(set + "SET default_transaction_read_only = on")
	return &DB{
		Write: postgresPool(config, writers, false), Read: postgresPool(reading, readers, true), beats: postgresPool(config, beats, false),
		lease: leaseTTL, engine: postgres,
	}, nil
}

// executing returns a function that executes statements on a new connection.
func executing(statements string) pgconn.AfterConnectFunc {
	return func(ctx context.Context, c *pgconn.PgConn) error { return c.Exec(ctx, statements).Close() }
}

func postgresPool(config *pgx.ConnConfig, size int, reads bool) *sql.DB {
	db := sql.OpenDB(connector{stdlib.GetConnector(*config), reads})
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return db
}

// suits refuses a server that would lose text or acknowledged changes.
func (db *DB) suits(ctx context.Context) error {
	var encoding, durable string
	err := db.Write.QueryRowContext(ctx, "SELECT current_setting('server_encoding'), current_setting('synchronous_commit')").Scan(&encoding, &durable)
	switch {
	case err != nil:
		return err
	case encoding != "UTF8":
		return fmt.Errorf("its encoding is %s, and toolgate needs UTF8", encoding)
	case durable == "off":
		return errors.New("synchronous_commit is off: a crash of the server would lose decisions that toolgate acted on")
	}
	return nil
}

// migrate applies the migrations that the database lacks, all or none. One process at a
// time does.
func (db *DB) migrate(ctx context.Context, steps []migration) error {
	return db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var found bool
		err := db.Lock(ctx, tx, "migrations")
		if err != nil {
			return err
		}
		err = tx.QueryRowContext(ctx, "SELECT to_regclass('schema_version') IS NOT NULL").Scan(&found)
		if err == nil && !found {
			_, err = tx.ExecContext(ctx, postgresHeader)
		}
		if err != nil {
			return err
		}
		have, err := db.engine.schema(ctx, tx, steps)
		if err != nil || have >= len(steps) {
			return err
		}
		if have > 0 && oldestUser(steps) > have {
			alive, err := db.sweepLeases(ctx, tx)
			if err = errors.Join(err, inUseBy(alive, steps)); err != nil {
				return err
			}
		}
		return db.engine.apply(ctx, tx, have, steps)
	})
}

// explainPostgres adds the database to an error and, where a person can help, a hint.
func explainPostgres(address string, err error) error {
	hint := ""
	var refused *pgconn.ConnectError
	switch {
	case errors.Is(err, ErrNewer):
		hint = "\nhint: run the toolgate version that upgraded it, or a later one"
	case errors.Is(err, ErrInUse):
		hint = "\nhint: stop the other processes first, then start this version"
	case errors.As(err, &refused):
		hint = "\nhint: is the server up, and are the host, the user and the password of the URL right?"
	}
	return fmt.Errorf("opening state database %s: %w%s", Redact(address), err, hint)
}

// connector makes connections for statements in the form that SQLite has.
type connector struct {
	driver.Connector
	reads bool // of conn
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	made, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return conn{made.(*stdlib.Conn), c.reads}, nil
}

// conn translates statements and their arguments. A server that restarts closes connections,
// and a pool notices when it uses one. A BEGIN, a preparation or a read that finds the
// connection closed has changed nothing, so database/sql does it again on another one.
// A statement that may have written, and a commit, are never repeated.
type conn struct {
	*stdlib.Conn
	reads bool // every statement only reads
}

// again adds [driver.ErrBadConn] to the error of what can be repeated, if the connection is
// closed.
func (c conn) again(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil && c.Conn.Conn().IsClosed() {
		return fmt.Errorf("%w: %w", driver.ErrBadConn, err)
	}
	return err
}

func (c conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.BeginTx(ctx, opts)
	return tx, c.again(ctx, err)
}

func (c conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	made, err := c.Conn.PrepareContext(ctx, translate(query))
	if err != nil {
		return nil, c.again(ctx, err)
	}
	return stmt{made.(*stdlib.Stmt), c, query}, nil
}

// stmt is a prepared statement of a conn.
type stmt struct {
	*stdlib.Stmt
	conn  conn
	query string
}

func (s stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args) // which knows that it is prepared
}

func (c conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.ExecContext(ctx, translate(query), args)
}

func (c conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.Conn.QueryContext(ctx, translate(query), args)
	if c.reads {
		err = c.again(ctx, err)
	}
	return rows, err
}

// CheckNamedValue makes the values that SQLite would store: truth values are 0 and 1.
func (c conn) CheckNamedValue(arg *driver.NamedValue) (err error) {
	arg.Value, err = driver.DefaultParameterConverter.ConvertValue(arg.Value)
	if truth, ok := arg.Value.(bool); ok {
		arg.Value = int64(0)
		if truth {
			arg.Value = int64(1)
		}
	}
	return err
}

// indexHint names an index to SQLite, which keeps no statistics here.
var indexHint = regexp.MustCompile(` INDEXED BY \w+`)

// translate numbers the parameters of a statement and removes index hints. A question
// mark is always a parameter: no statement has one in a literal.
func translate(query string) string {
	if strings.Contains(query, " INDEXED BY ") {
		query = indexHint.ReplaceAllString(query, "")
	}
	var out strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(query, "?")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString("$" + strconv.Itoa(n))
		query = after
	}
}

// lost reports whether an error means that the connection is gone, rather than that the
// server refused a statement.
func lost(err error) bool {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(refused.Code, "57P") // the server shuts down
	}
	return !errors.Is(err, pgx.ErrTxCommitRollback) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// ErrAway reports that what the store has could not be read for some time: Away is true for it.
var ErrAway = errors.New("the state cannot be reached")

// Away reports whether an error means that the server of the database could not be
// reached, or that a lock was not free in time: the same may succeed a little later. The
// change of such an Update was not made, except after [ErrOutcome].
func Away(err error) bool {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok { // it shuts down or starts, the connection is lost, it has too many, or a time of sessionSettings is over
		return strings.HasPrefix(refused.Code, "57") || strings.HasPrefix(refused.Code, "08") || slices.Contains([]string{"53300", "25P03", lockTimeout}, refused.Code)
	}
	var connecting *pgconn.ConnectError
	var network net.Error
	return errors.Is(err, ErrAway) || errors.Is(err, ErrBusy) || errors.Is(err, ErrOutcome) || errors.As(err, &connecting) || errors.As(err, &network) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.ErrUnexpectedEOF)
}
