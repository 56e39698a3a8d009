package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrIrregular reports a file that is a directory, a pipe, a socket or a device.
var ErrIrregular = errors.New("it is not a regular file")

// Read reads a regular file of at most most bytes that others may have written. It never
// waits for a writer. The error is ErrIrregular for anything but a regular file or a link to
// one.
func Read(path string, most int64) ([]byte, error) {
	return read(os.Stat, os.OpenFile, path, most)
}

// ReadIn is Read of a file below dir, named by its path from there. A link out of dir is an
// error.
func ReadIn(dir, name string, most int64) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // it was only read
	return read(root.Stat, root.OpenFile, name, most)
}

func read(stat func(string) (fs.FileInfo, error), open func(string, int, fs.FileMode) (*os.File, error), name string, most int64) ([]byte, error) {
	// The opening of a device or a pipe may have an effect: look before.
	info, err := stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = ErrIrregular
	}
	if err != nil {
		return nil, err
	}
	f, err := open(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() { // somebody has replaced it since
		err = ErrIrregular
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, fmt.Errorf("it is larger than %d bytes", most)
	}
	return data, err
}
