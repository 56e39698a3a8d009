package notice

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"github.com/wneessen/go-mail"

	"github.com/toolgate/toolgate/internal/delivery"
	"github.com/toolgate/toolgate/internal/guard"
	"github.com/toolgate/toolgate/internal/text"
)

// mail returns the channel of one address. Each address has its own, so that one that
// a server refuses does not delay others.
func (s *Sender) mail(f Channel, to string) (*channel, error) {
	server, err := address(f.SMTP, "smtp", "smtps")
	if err != nil {
		return nil, err
	}
	secure := &tls.Config{ServerName: server.Hostname(), RootCAs: s.opts.Roots}
	m := &mailer{to: to, from: f.From, host: server.Hostname(), dial: s.dial}
	if server.Scheme == "smtps" {
		m.secure = secure
	}
	if m.options, err = mailOptions(server, secure); err != nil {
		return nil, err
	}
	msg, err := m.message("", Body{})
	if err != nil {
		return nil, err
	}
	sender, err := msg.GetSender(false)
	if err != nil {
		return nil, delivery.ErrAddress
	}
	m.domain = sender[strings.LastIndexByte(sender, '@'):]
	return &channel{key: channelKey("email", to), name: "email:" + m.host, send: m.send, close: func() {}}, nil
}

// mailOptions returns the options of a connection to server: encrypted, unless the
// server is on this machine and offers no encryption. Passwords are sent unencrypted
// to this machine only.
func mailOptions(server *url.URL, secure *tls.Config) ([]mail.Option, error) {
	port, err := strconv.ParseUint(cmp.Or(server.Port(), map[string]string{"smtp": "587", "smtps": "465"}[server.Scheme]), 10, 16)
	if err != nil || port == 0 {
		return nil, delivery.ErrAddress
	}
	policy := mail.TLSMandatory
	if guard.Loopback(server.Hostname()) {
		policy = mail.TLSOpportunistic
	}
	options := []mail.Option{mail.WithPort(int(port)), mail.WithTimeout(delivery.Timeout), mail.WithTLSConfig(secure), mail.WithTLSPolicy(policy)}
	if server.Scheme == "smtps" {
		options = append(options, mail.WithSSL())
	}
	if server.User != nil {
		password, _ := server.User.Password()
		options = append(options, mail.WithUsername(server.User.Username()), mail.WithPassword(password),
			mail.WithOpportunisticSMTPAuth(mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthPlain, mail.SMTPAuthLogin))
	}
	return options, nil
}

// A mailer sends mail to one address.
type mailer struct {
	host, from, to string
	domain         string      // of from, with its @
	secure         *tls.Config // of a server that uses TLS from the first byte, else nil
	options        []mail.Option
	dial           dialer
}

// dialer is net.Dialer's DialContext.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// send hands n to the mail server.
func (m *mailer) send(ctx context.Context, n *notice) error {
	b, err := n.read()
	if err != nil {
		return err
	}
	msg, err := m.message(n.id, b)
	if err != nil {
		return err
	}
	c := &smtpConn{ctx: ctx, plain: m.dial, secure: m.secure}
	defer func() {
		if c.conn != nil {
			c.stopWatch()
			_ = c.conn.Close() // the conversation is over
		}
	}()
	client, err := mail.NewClient(m.host, append(m.options[:len(m.options):len(m.options)], mail.WithDialContextFunc(c.dial))...)
	if err != nil {
		return delivery.ErrAddress
	}
	talk, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return explainMail(ctx, err, errNoTLS)
	}
	err = client.SendWithSMTPClient(talk, msg)
	if err == nil || msg.IsDelivered() { // an error after delivery does not count
		_ = client.CloseWithSMTPClient(talk)
		return nil
	}
	return explainMail(ctx, err, delivery.ErrProtocol)
}

// message returns the mail of a notice. Its id is the notice's, so that mail programs
// recognize a repeat.
func (m *mailer) message(id string, b Body) (*mail.Msg, error) {
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := msg.From(m.from); err != nil {
		return nil, errors.New("the address that mails come from is none")
	}
	if err := msg.To(m.to); err != nil {
		return nil, errors.New("the address that mails go to is none")
	}
	msg.Subject("[toolgate] " + text.ClipRunes(b.title(), 150))
	msg.SetMessageIDWithValue(id + m.domain)
	msg.SetDateWithValue(b.Timestamp)
	msg.SetGenHeader(mail.Header("Auto-Submitted"), "auto-generated") // RFC 3834: no answer from absence programs
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n", b.title())
	for _, l := range b.facts() {
		fmt.Fprintf(&text, "%s: %s\n", l.name, l.value)
	}
	fmt.Fprintf(&text, "\n%s:\n%s\n\nThe page asks you to sign in. An answer to this mail is read by nobody.\n", b.open(), b.Data.URL)
	msg.SetBodyString(mail.TypeTextPlain, text.String())
	return msg, nil
}

// An smtpConn is one connection to a mail server that ends with ctx. go-mail dials with
// a context of its own, keeps waiting for answers after ctx has ended, and leaves the
// connection open when the conversation fails.
type smtpConn struct {
	ctx       context.Context
	plain     dialer
	secure    *tls.Config
	conn      net.Conn
	stopWatch func() bool // ends the watch over ctx
}

func (c *smtpConn) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.plain(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.conn, c.stopWatch = conn, context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	if c.secure == nil {
		return conn, nil
	}
	encrypted := tls.Client(conn, c.secure) // go-mail asks for its type before it sends a password
	return encrypted, encrypted.HandshakeContext(ctx)
}

// explainMail says why a mail was not accepted; otherwise is the error of a
// failure that go-mail reports without a type.
func explainMail(ctx context.Context, err, otherwise error) error {
	var refused *mail.SendError
	if errors.As(err, &refused) && refused.ErrorCode() > 0 {
		return errors.New("it answered with code " + strconv.Itoa(refused.ErrorCode()))
	}
	if reply := (*textproto.Error)(nil); errors.As(err, &reply) {
		return errors.New("it answered with code " + strconv.Itoa(reply.Code))
	}
	if reason := delivery.Explain(ctx, err); !errors.Is(reason, delivery.ErrProtocol) {
		return reason
	}
	var broken net.Error
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &broken) {
		return delivery.ErrProtocol
	}
	return otherwise
}
