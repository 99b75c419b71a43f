//! Protobuf schemas: one `.proto` file, compiled in memory. Only the well-known types may be imported. Some clients send
//! the compiled form instead of the text, a `FileDescriptorProto` in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, MessageDescriptor};
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

/// The name under which the file is compiled.
const FILE: &str = "schema.proto";

/// A `.proto` file that compiles.
#[derive(Clone, Debug)]
pub(crate) struct ProtoFile {
    pool: DescriptorPool,
}

/// Knows the one file that is compiled.
#[derive(Debug)]
enum OneFile {
    Text(String),
    Compiled(Box<FileDescriptorProto>),
}

impl OneFile {
    /// No `.proto` file is also base64: it has spaces, semicolons or braces.
    fn of(text: &str) -> OneFile {
        let bytes = STANDARD.decode(text.trim()).ok().filter(|bytes| !bytes.is_empty());
        // What is neither is compiled as text, with an error that says so.
        match bytes.and_then(|bytes| FileDescriptorProto::decode(bytes.as_slice()).ok()) {
            Some(file) => {
                OneFile::Compiled(Box::new(FileDescriptorProto { name: Some(FILE.to_owned()), ..file }))
            }
            None => OneFile::Text(text.to_owned()),
        }
    }
}

impl FileResolver for OneFile {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match self {
            _ if name != FILE => Err(protox::Error::file_not_found(name)),
            OneFile::Text(text) => File::from_source(name, text),
            OneFile::Compiled(file) => Ok(File::from_file_descriptor_proto((**file).clone())),
        }
    }
}

impl ProtoFile {
    pub(super) fn parse(text: &str) -> Result<ProtoFile, String> {
        let mut resolver = ChainFileResolver::new();
        resolver.add(OneFile::of(text));
        resolver.add(GoogleFileResolver::new());
        let mut compiler = protox::Compiler::with_file_resolver(resolver);
        compiler.include_imports(true);
        compiler.open_file(FILE).map_err(|error| error.to_string())?;
        let pool = compiler.descriptor_pool();
        let file = ProtoFile { pool };
        if file.messages().next().is_none() {
            return Err("the file declares no message".to_owned());
        }
        Ok(file)
    }

    /// The messages at the top of the file, in the order of the text.
    pub(crate) fn messages(&self) -> impl Iterator<Item = MessageDescriptor> {
        let file = self.pool.get_file_by_name(FILE);
        file.into_iter().flat_map(|file| file.messages().collect::<Vec<_>>())
    }

    /// The message that payloads are encoded as: the first of the file.
    pub(super) fn payload(&self) -> Option<MessageDescriptor> {
        self.messages().next()
    }

    /// The compiled form, as clients that do not compile want it.
    pub(super) fn compiled(&self) -> String {
        let file = self.pool.get_file_by_name(FILE);
        file.map(|file| STANDARD.encode(file.encode_to_vec())).unwrap_or_default()
    }

    /// The package of the file.
    pub(crate) fn package(&self) -> String {
        self.pool.get_file_by_name(FILE).map(|file| file.package_name().to_owned()).unwrap_or_default()
    }
}
